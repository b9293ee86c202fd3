"""Cases made by covering designs, of arguments that change between calls, and of relations without tolerance."""
