"""Recipes that can run: the models of `config/`, planning, and checks whose errors list the choices."""
