"""The suite: parity modules, one comparison helper, one report, the command line ``qsa``."""
