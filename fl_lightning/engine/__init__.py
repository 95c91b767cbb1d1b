"""A round: cohort, local training, aggregation. It knows no algorithm, no layout of a run folder and no screen."""
