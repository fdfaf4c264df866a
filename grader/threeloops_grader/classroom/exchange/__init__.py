"""nbgrader's exchange on a machine that students share. Files that students leave there are not trusted."""
