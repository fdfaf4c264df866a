"""A JupyterHub whose users get the course with nbgitpuller and hand in through nbgrader's exchange.

An example to adapt: one machine, users of the system. The instructor's checkout holds solutions and grades, so nobody
else may enter it. The environment lies outside of it, where everybody can read it. As root, in the checkout:

    chmod 700 . && umask 022
    python3 scripts/make_venv.py /srv/three_loops_env requirements.txt
    /srv/three_loops_env/bin/pip install --no-deps --no-build-isolation .
    /srv/three_loops_env/bin/pip install -c requirements.txt jupyterhub nbgitpuller
    ln -s /srv/three_loops_env/bin/{threeloops,nbgrader} /usr/local/bin/    # for terminals, which set PATH anew
    install -d -o instructor -m 1777 /srv/exchange

The hub itself also needs `configurable-http-proxy`, a program of Node.js. After a change to the course, run the first
three lines again.
"""

c = get_config()  # noqa: F821 (jupyterhub provides it)

CHECKOUT, ENVIRONMENT, EXCHANGE = "/srv/teacher/three_loops", "/srv/three_loops_env", "/srv/exchange"
INSTRUCTORS = {"instructor"}


def course(spawner):
    """The course folder of a user: a copy of the student bundle in their home, and for instructors the checkout."""
    name = spawner.user.name
    return CHECKOUT if name in INSTRUCTORS else f"/home/{name}/three_loops"


c.JupyterHub.authenticator_class = "pam"
c.Authenticator.admin_users = INSTRUCTORS
c.Authenticator.allow_all = True  # whoever has an account on this machine

c.Spawner.cmd = [f"{ENVIRONMENT}/bin/jupyterhub-singleuser"]
c.Spawner.default_url = "/lab"
c.Spawner.mem_limit = "4G"  # has an effect with spawners that confine, such as SystemdSpawner
c.Spawner.environment = {
    "THREELOOPS_ROOT": course,
    # Students write to it and must not read each other's work: nbgrader makes inbound/ writable and not listable.
    "THREELOOPS_EXCHANGE": EXCHANGE,
    "OMP_NUM_THREADS": "2",
}

# The link for students, with the address of your own copy of the student bundle in a repository:
# https://HUB/hub/user-redirect/git-pull?repo=REPOSITORY&branch=main&targetPath=three_loops&urlpath=lab/tree/three_loops
