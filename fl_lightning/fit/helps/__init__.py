"""What ``--help`` and ``--OPTION.help`` show."""
