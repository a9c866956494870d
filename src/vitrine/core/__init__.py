"""What every package needs: errors, files, console, reports, hub, devices."""
