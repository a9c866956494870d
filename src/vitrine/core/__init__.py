"""Shared by every package: command-line parsing, config checks, console, files, HTML reports, Hugging Face Hub, devices."""
