"""The command line: parse, call the API, print."""
