"""A learning management system without files: roster and grades over LTI 1.3 Advantage, by pylti1p3."""
