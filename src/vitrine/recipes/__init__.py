"""Runs with a name: functions that return a recipe. No torch here, so that they are listed at once."""
