"""Release solutions/ to labs/, and merge newer releases into students' copies."""
