# Raises an error in the cell.
# says: ValueError: no answer today

raise ValueError('no answer today')
