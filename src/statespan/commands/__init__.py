"""The commands of the command line. Nothing heavy is imported before a command runs."""
