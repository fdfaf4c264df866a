"""The connection to nbgrader: autograde, plugins, the gradebook and the exports."""
