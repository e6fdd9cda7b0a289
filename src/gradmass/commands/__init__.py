"""Commands: one file a question a person asks, each with ``main(argv) -> exit code``."""
