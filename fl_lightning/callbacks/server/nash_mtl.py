"""NashMTL: the step on which clients would agree in a bargain."""

from fl_lightning.callbacks.server.fairgrad import FairGrad


class NashMTL(FairGrad):
    """Weighs the updates by Nash's solution of a bargain between the clients on the step (Navon et al., 2022).

    Navon et al., 2022, "Multi-Task Learning as a Bargaining Game", Claim 3.1 and Algorithm 1. Clients stand for tasks,
    updates for gradients. Of all steps of one length, the product of the clients' gains is largest for the weights with
    G w = 1 / w, whatever the lengths of the updates. The paper approaches w by a sequence of convex programs, of which
    the released code solves at most 20 a step and starts from the last step's; here the convex problem of
    :class:`FairGrad` with α = 1, whose solution is w, is solved to rounding in each round. The length of the published
    step is √K; the run's weights do not count. Where updates cancel, no step is taken.

    Args:
        max_norm: largest length of the step; the released code's is 1. The length is always this or √K: the server
            optimizer's learning rate is the method's.

    Raises:
        ConfigurationError: ``max_norm`` is not positive.
    """

    def __init__(self, max_norm: float = 1.0) -> None:
        super().__init__(1.0, max_norm)
