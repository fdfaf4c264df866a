# Uses IPython magics and shell commands, which a notebook allows.
# says: mean

%%bash
exit 3
