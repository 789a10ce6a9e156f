"""Running plans: one scheduler, two runners, traces, evaluation and the command line."""
