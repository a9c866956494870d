"""The commands, one file each: parse the options, call the library function of the same name, print its result."""
