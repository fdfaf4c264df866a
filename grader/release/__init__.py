"""From solutions/ to labs/, and newer releases into students' copies."""
