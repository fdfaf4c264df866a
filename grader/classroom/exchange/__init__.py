"""nbgrader's exchange on a machine that students share: what they leave there is not trusted."""
