"""The `pykv` command: one module per subcommand with `add_parser` and `run`."""
