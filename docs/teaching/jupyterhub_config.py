"""A JupyterHub whose users get the course with nbgitpuller and hand in through nbgrader's exchange.

An example to adapt: one machine, users of the system, a checkout of the course in /srv/three_loops that belongs to the
instructor, with its environment in /srv/three_loops/.venv. The hub itself needs `jupyterhub` and `nbgitpuller`.
"""

c = get_config()  # noqa: F821 (jupyterhub provides it)

COURSE, EXCHANGE = "/srv/three_loops", "/srv/exchange"
INSTRUCTORS = {"instructor"}

c.JupyterHub.authenticator_class = "pam"
c.Authenticator.admin_users = INSTRUCTORS
c.Authenticator.allow_all = True  # whoever has an account on this machine

c.Spawner.cmd = [f"{COURSE}/.venv/bin/jupyterhub-singleuser"]
c.Spawner.default_url = "/lab"
c.Spawner.mem_limit = "4G"  # has an effect with spawners that confine, such as SystemdSpawner
c.Spawner.environment = {
    # Students write to it and must not read each other's work: nbgrader makes inbound/ writable and not listable.
    "THREELOOPS_EXCHANGE": EXCHANGE,
    "OMP_NUM_THREADS": "2",
}

# The link for students, with the address of your own copy of the student bundle in a repository:
# https://HUB/hub/user-redirect/git-pull?repo=REPOSITORY&branch=main&urlpath=lab/tree/three_loops
