"""The safe file format of models, buffers and states: JSON and arrays in a zip, from which no code is run."""
