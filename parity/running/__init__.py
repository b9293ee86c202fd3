"""What goes on around the cases of a run: which of them run, compilation ahead, progress, interruption, watching."""
