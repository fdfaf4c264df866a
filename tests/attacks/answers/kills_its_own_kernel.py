# Asks the Jupyter kernel to shut down.
# says: kernel

get_ipython().kernel.do_shutdown(False)
