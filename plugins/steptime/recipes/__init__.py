"""What could run: the models of `config/`, planning, and the checks that list the choices."""
