"""What students compute: for each exercise of kind `number` the inputs of a student, and the results."""
