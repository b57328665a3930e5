"""Heinsen routing of vectors in sequences: parents gain the children that they predict best, and say whom they credit.

Heinsen, "An algorithm for routing vectors in sequences", 2022, with the networks of the author's efficient version (x
are the children's poses, v their votes, y the parents, N a layer normalisation without parameters):

    E   R[i] = softmax over j of S[i,j]                              at first uniform
        x̂[j] = W_G2[j] ∘ (W_G1 N(y[j])) + b_G[j]                     network G: the child that a parent expects
        S[i,j] = ln f(W_S[i,j] x[i] · x̂[j] + b_S[i,j])               network S: how well it is met
    D   D_use[i,j] = f(a[i]) R[i,j]        D_ign[i,j] = f(a[i]) − D_use[i,j]
    M   φ[i,j] = β_use[i,j] D_use[i,j] − β_ign[i,j] D_ign[i,j]       credit: net benefit less net cost
        y[j] = Σ_i φ[i,j] v[i,j]
    return N(y), f(w[j] · N(y[j]) + b[j])

f is the logistic function. No variances and no densities: a parent is a vector that predicts its children. Initial
values are those of the author's code, normals throughout and zero offsets.

Differs from the paper: votes are the layer's own (its network F would share one transform among all), a child's f(a) is
what the layer below says (network A). The paper's outputs have no activation until the next layer asks for one: that
network A is here the last line.

With `any_children`, β is computed from a child's pose by a linear layer, and W_S and b_S are those of a parent: then
the same parameters route any number of children, as the author has it for sequences of varying length.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm, logsigmoid

from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape, couplings, positive


class Heinsen2022(Routing):
    init_std = 1.0

    def __init__(self, shape: VoteShape, *, iterations: int = 2, any_children: bool = False) -> None:
        super().__init__()
        if not shape.child_dim:
            raise ValueError("heinsen-2022 predicts the children's poses: VoteShape needs their child_dim")
        self.iterations, self.any_children = positive(iterations), any_children
        rows, j, d, p = 1 if any_children else shape.children, *shape[1:]
        self.predict = nn.Parameter(torch.randn(p, d) / d**0.5)
        self.predict_each = nn.Parameter(torch.randn(j, p))
        self.predict_bias = nn.Parameter(torch.zeros(j, p))
        self.similarity = nn.Parameter(torch.randn(rows, j) / p**0.5)
        self.similarity_bias = nn.Parameter(torch.zeros(rows, j))
        self.use: nn.Parameter | nn.Linear = nn.Linear(p, j) if any_children else nn.Parameter(torch.randn(rows, j))
        self.ignore: nn.Parameter | nn.Linear = nn.Linear(p, j) if any_children else nn.Parameter(torch.randn(rows, j))
        self.presence = nn.Parameter(2 * torch.randn(j, d) / d**0.5)
        self.presence_bias = nn.Parameter(torch.zeros(j))

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        y = self._route(votes, children, competition, recorder)[0]
        activations = torch.sigmoid((y * self.presence).sum(-1) + self.presence_bias)
        return y, activations

    def credit(
        self, votes: Votes, children: Capsules, competition: Competition | None = None
    ) -> Float[Tensor, "b i j"]:
        """φ of the last iteration: how much each parent is made of each child, positive or negative.

        Credits add up. Of two layers on top of each other, the matrix product of their credits is that of the upper
        layer's parents for the lower layer's children (section 3.2).
        """
        return self._route(votes, children, competition, Recorder(False))[1]

    def _route(
        self, v: Votes, children: Capsules, competition: Competition | None, recorder: Recorder
    ) -> tuple[Float[Tensor, "b j d"], Float[Tensor, "b i j"]]:
        x, f_a = children.poses, children.activations.unsqueeze(-1)
        beta_use, beta_ign = (beta(x) if isinstance(beta, nn.Linear) else beta for beta in (self.use, self.ignore))
        S = v.new_zeros(v.shape[:3])
        y, phi = v[:, 0], S
        for iteration in range(self.iterations):
            R = couplings(S, competition=competition)
            used = f_a * R
            phi = beta_use * used - beta_ign * (f_a - used)
            y = layer_norm(torch.einsum("bij,bijd->bjd", phi, v), v.shape[-1:])
            if iteration < self.iterations - 1 or recorder:
                predicted = self.predict_each * (y @ self.predict.T) + self.predict_bias
                score = torch.einsum("bip,bjp->bij", x, predicted)
                found = logsigmoid(self.similarity * score + self.similarity_bias)
                recorder.add(R, S, found)
                S = found
        return y, phi
