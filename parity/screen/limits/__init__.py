"""What a machine can do at most, measured in the run that is judged by it, its state, and the floors of cases."""
