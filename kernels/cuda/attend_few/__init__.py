"""The exact ``attend`` of few rows of int8: clusters of blocks that take four query heads each."""
