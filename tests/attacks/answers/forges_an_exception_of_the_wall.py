# Sends an exception that claims to be the wall's own word for a dead link.
# says: LinkDead: x
# after: forge.py

def reply(self, tree):

    names = ["threeloops_grader.transport.link.LinkDead", "builtins.BaseException", "builtins.Exception"]
    frame({"error": {"classes": names, "message": "x"}})
