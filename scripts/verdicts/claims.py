"""The claims of papers about accuracy, in our words, and the trials that test them here.

A trial trains an arm beside what it is compared with. It holds when the ratio of bytes is at least what it says, and the low end of the
interval of the difference of accuracy is at least -points; it fails when the ratio is less, a run of the arm diverges, or the high end
of the interval is below -points; else it is undecided. Intervals are as wide as Holm's correction over the trials of a claim makes them.
"""
import dataclasses
import math

import campaigns
from results import corrected


@dataclasses.dataclass(frozen=True)
class Trial:
    campaign: str
    arm: str
    points: float | None = 1.0  # most that may be lost; None: accuracy does not count; below 0: the arm must be better by as much
    against: tuple = ()  # (campaign, arm); empty: none of the same campaign
    kind: str = "payload"
    ratio: float | None = None
    says: str = ""  # which part of the claim this is


@dataclasses.dataclass(frozen=True)
class Claim:
    method: str
    title: str
    paper: str
    text: str
    trials: tuple
    smaller: str  # what was scaled down
    codecs: tuple = ()  # whose arms the page lists; empty: the method's


@dataclasses.dataclass
class Outcome:
    trial: Trial
    arm: object  # Arm
    against: object
    difference: object  # Difference; None where accuracy does not count
    ratio: float
    word: str
    level: float = 0.95  # confidence of the interval that decides, after Holm's correction

    @property
    def bounds(self):
        return (None, None) if self.difference is None else self.difference.bounds(self.level)

    @property
    def sends(self):
        """Whether the bytes are as few as the trial wants."""
        return self.trial.ratio is None or self.ratio >= self.trial.ratio

    @property
    def power(self):
        """The chance of holding for an arm that loses nothing, by its accuracy; None where a trial asks for a gain."""
        return self.difference.power(-self.trial.points, self.level) if self.difference and self.trial.points > 0 else None


HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"


def compared(trial, results):
    """(arm, against) of a trial; None where a campaign that it needs did not run."""
    arm = results.arm(trial.campaign, trial.arm)
    against = results.arm(*(trial.against or (trial.campaign, "none")))
    return None if arm is None or against is None else (arm, against)


def judge(claim, results):
    """The outcome of each trial of a claim, None for one that did not run."""
    found = []
    for trial in claim.trials:
        pair = compared(trial, results)
        if pair is None:
            found.append(None)
            continue
        gap = results.difference(*pair) if trial.points is not None else None
        found.append(Outcome(trial, *pair, gap, results.ratio(pair[0], trial.kind), UNDECIDED))
    tested = [o for o in found if o and o.difference and not o.difference.diverged]
    decided = corrected([o.difference.p_value(-o.trial.points) for o in tested])
    for o, (rejected, level) in zip(tested, decided):
        o.level = level
        if rejected:
            o.word = HOLDS if o.difference.mean >= -o.trial.points else FAILS
    for o in filter(None, found):
        if not o.sends or (o.difference and o.arm.diverged):
            o.word = FAILS
        elif o.difference is None:
            o.word = HOLDS
    return found


PART, PART_FAILS, NOT = "holds in part", "fails in part", "does not hold here"


def verdict(outcomes):
    words = {o.word for o in outcomes if o is not None}
    if not words:
        return "not run"
    if len(words) == 1:
        return {HOLDS: HOLDS, FAILS: NOT, UNDECIDED: UNDECIDED}[words.pop()]
    return PART if HOLDS in words else PART_FAILS


MAIN = ("lenet5", "none")  # with the optimiser's momentum: what methods with momentum of their own are compared with
# GradiVeQ's ratio of 8 in both phases of its cycle, over a training whose first part travels as it is.
GRADIVEQ_RATIO = 1 / (campaigns.GRADIVEQ_WARM_UP + (1 - campaigns.GRADIVEQ_WARM_UP) / 8)
FFT_WITH_BITMAP = 32 / (10 * (1 - 0.85) + 0.5)  # 10 of 32 bits, of 15 % of the frequencies, and half a bit an element for which these are
VGC_2 = campaigns.VGC[2]
SMALL = "ImageNet's and large language models need days of many processors and cannot be shown on two cores; "

PAPERS = (
    Claim("fft", "FFT sparsification trains as well as uncompressed SGD, and better than top-k, QSGD and TernGrad",
          "Wang et al., HPDC 2020, arXiv 1811.08596, sections 3.3 and 4.2",
          "With 85 % of the frequencies dropped and 10 bits a number, ResNet-32 on CIFAR-10 ends 0.12 points below SGD and AlexNet on ImageNet 0.09 "
          "above it, at a ratio of 21.3 (values alone); top-k at the same theta without error feedback, 3-bit QSGD and TernGrad end lower. A theta "
          "that does not fall costs accuracy (theorem 3.4); one that falls with the learning rate does not (theorem 3.5, figure 13).",
          (Trial("lenet5-fft", "fft:theta=0.85,bits=10", ratio=0.99 * FFT_WITH_BITMAP, says="as good as SGD, at the ratio that bitmaps leave"),
           Trial("resnet20", "fft:theta=0.85,bits=10", ratio=0.99 * FFT_WITH_BITMAP, says="the same, residual network"),
           Trial("lenet5-rates", "fft:theta=0.85,bits=10", ratio=0.99 * FFT_WITH_BITMAP, says="the same, the best of four learning rates"),
           Trial("lenet5-plateau", "fft:theta=0.85,bits=10", ratio=0.99 * FFT_WITH_BITMAP, says="the same, ten epochs, cosine"),
           Trial("lenet5-fft", "fft:theta=0.85,bits=10", 0.0, ("lenet5-fft", "topk:ratio=0.15,ef=off"), says="better than top-k"),
           Trial("lenet5-fft", "fft:theta=0.85,bits=10", 0.0, ("lenet5-fft", "qsgd:bits=3"), says="better than QSGD"),
           Trial("lenet5-fft", "fft:theta=0.85,bits=10", 0.0, ("lenet5-fft", "terngrad:clip=off"), says="better than TernGrad"),
           Trial("lenet5-fft", "fft:theta=0.9,schedule=drop", says="theta 0.9 that drops to 0 with the learning rate"),
           Trial("lenet5-fft", "fft:theta=0.99,schedule=drop", 0.0, ("lenet5-fft", "fft:theta=0.99,bits=10"),
                 says="dropping theta is better than keeping it")),
          SMALL + "LeNet-5 and ResNet-20 stand for AlexNet and ResNet-32, minutes of training for 70 and 180 epochs. Vectors are as long as these "
          "models: "
          "a chunk holds whole layers. The paper's ratio of 21.3 is of the values alone; with the bitmap that says which frequencies they are it is 16, "
          "and 15.8 is asked for.", ("fft", "topk", "qsgd", "terngrad")),
    Claim("gradiveq", "GradiVeQ loses no more than a point, like 4-bit QSGD",
          "Yu et al., NeurIPS 2018, arXiv 1811.03617, section 4",
          "ResNet-32 on CIFAR-100 with six nodes: a top-1 accuracy of 0.666, 0.667 with 4-bit QSGD and 0.676 uncompressed, with principal "
          "components of "
          "convolutions' gradients that are fitted in 100 steps and used in the next 400, at an average ratio of 8.",
          (Trial("resnet20", "gradiveq:lt=100", ratio=GRADIVEQ_RATIO, says="at most a point, at a ratio of 8 after the warm-up"),
           Trial("resnet20", "gradiveq:lt=100", 1.0, ("resnet20", "qsgd:bits=4,bucket=512"), says="like 4-bit QSGD")),
          "One cycle of the paper's 85, after a warm-up of the same share of the training; ResNet-20, four workers, CIFAR-10 or Fashion-MNIST. Short "
          "cycles (lt=20) are listed beside it. LeNet-5 is no test: nearly all of its parameters are in linear layers, which the method leaves "
          "alone."),
    Claim("vgc", "VGC compresses by orders of magnitude and keeps accuracy",
          "Tsuzuku et al., ICLR 2018 workshop, arXiv 1802.06058, sections 4 and 6; figures of the tables are recalled and were not read again",
          "CIFAR-10 with 8 workers: two to three orders of magnitude (parameters over elements sent), with no loss under Adam and 1 to 3 points "
          "under SGD with momentum; larger alpha sends less; the hybrid with Strom's threshold reaches the largest ratios; Strom's threshold "
          "alone is fragile.",
          (Trial("lenet5-vgc-adam", VGC_2, ratio=100, says="Adam, alpha' = 2, two orders of magnitude"),
           Trial("lenet5-vgc-adam", campaigns.VGC[0], ratio=10, says="Adam, alpha' = 1"),
           Trial("lenet5-vgc", VGC_2, 3.0, ratio=100, says="momentum, alpha' = 2, two orders of magnitude"),
           Trial("lenet5-vgc", campaigns.VGC[0], 3.0, ratio=10, says="momentum, alpha' = 1"),
           Trial("lenet5-vgc", campaigns.HYBRIDS[1], 5.0, ratio=1000, says="hybrid, tau = 0.1, momentum: three orders"),
           Trial("lenet5-vgc", VGC_2, 0.0, ("lenet5-vgc", "strom:tau=0.1"), says="better than Strom's threshold of 0.1"),
           Trial("lenet5-vgc-adam", VGC_2, 0.0, ("lenet5-vgc-adam", "strom:tau=0.01"), says="better than Strom's of 0.01, Adam")),
          SMALL + "the variance is estimated from 8 micro-batches of 4 images, not from 64 single ones, and alpha is converted for it. The paper "
          "trains "
          "for 300 epochs: gradients grow noisier late in a training, and a noisier gradient sends less.", ("vgc", "strom")),
    Claim("iwp", "Importance-weighted pruning compresses 58.8 to 64 times and keeps accuracy",
          "Cheng and Xu, arXiv 1901.01544, abstract (thresholds, broadcasters and masks are our reconstruction)",
          "AlexNet and ResNet-50 on ImageNet keep their accuracy on a ring all-reduce that sends 64 and 58.8 times less, because a few nodes pick "
          "for "
          "all what is large against its weight. Momentum correction, thresholds by layer and a warm-up belong to it.",
          (Trial("lenet5-own-momentum", "iwp:density=0.01,roots=1,mu=0.9", 1.0, MAIN, ratio=10, says="one broadcaster, momentum correction"),
           Trial("lenet5-own-momentum", "iwp:density=0.01,roots=2,mu=0.9", 1.0, MAIN, ratio=10, says="two broadcasters"),
           Trial("lenet5-own-momentum", "iwp:density=0.001,mu=0.9", 1.0, MAIN, "payload at the end", 58.8, says="warm-up to 0.1 %, the paper's ratio"),
           Trial("resnet20", "iwp:density=0.01,roots=1", ratio=58.8, says="residual network, momentum in the optimiser, the paper's ratio"),
           Trial("lenet5-own-momentum", "iwp:policy=fixed,threshold=0.1", 1.0, MAIN, ratio=10, says="fixed threshold 0.1"),
           Trial("lenet5-own-momentum", "iwp:policy=mean_std", 1.0, MAIN, ratio=10, says="threshold from mean and deviation"),
           Trial("lenet5-own-momentum", "iwp:policy=dispersion", 1.0, MAIN, ratio=10, says="threshold from dispersion")),
          SMALL + "LeNet-5 and ResNet-20 have a larger share of one-dimensional tensors, which travel whole, and so smaller ratios for one density: "
          "where the density is not searched for the paper's ratio, 10 is asked for."),
    Claim("dlcp", "Training tolerates the loss of 0.6 to 3.5 % of the gradient, and more where large packets are protected",
          "Wang et al., arXiv 2008.08445, and MLT, NSDI 2024, motivation and evaluation; figures from readers' notes",
          "More than ten models reach their accuracy in the same epochs with 0.6 to 3.5 % of the gradient lost at random; 20 to 30 % need more "
          "epochs; "
          "10 %, the bound of the evaluation, do no harm when switches drop packets of small gradients first.",
          (Trial("lenet5-dlcp", campaigns.RANDOM_LOSS[0], says="1 % lost at random"),
           Trial("lenet5-dlcp", campaigns.RANDOM_LOSS[1], says="3 % lost at random"),
           Trial("resnet20", "dlcp:model=iid,loss=0.03,bound=1", says="3 % lost at random, residual network"),
           Trial("gpt-nano", "dlcp:model=iid,loss=0.03,bound=1", says="3 % lost at random, language model"),
           Trial("lenet5-dlcp", campaigns.MARKED_LOSS[2], says="about 10 % lost, large packets marked"),
           Trial("lenet5-dlcp", campaigns.MARKED_LOSS[3], 0.0, ("lenet5-dlcp", campaigns.RANDOM_LOSS[3]), says="marked better than at random, about 20 %"),
           Trial("lenet5-dlcp", campaigns.MARKED_LOSS[4], 0.0, ("lenet5-dlcp", campaigns.RANDOM_LOSS[4]), says="marked better than at random, about 30 %"),
           Trial("lenet5-dlcp", "none", -1.0, ("lenet5-dlcp", campaigns.RANDOM_LOSS[4]), says="30 % at random cost more than a point in the same epochs")),
          "Losses are emulated between a worker and everybody else, nothing is sent again, and the gradient of LeNet-5 has few packets. That tails "
          "get shorter, "
          "the paper's point, is not a matter of accuracy."),
)

BASELINES = (
    Claim("topk", "Dropping 99 % of the gradient costs nothing with error feedback", "Aji and Heafield, EMNLP 2017, abstract; Stich et al., NeurIPS 2018",
          "The 1 % of largest magnitudes, the rest added to the next step: translation and MNIST models train as well.",
          (Trial("lenet5", "topk:ratio=0.01", ratio=50, says="LeNet-5"),
           Trial("lenet5-rates", "topk:ratio=0.01", ratio=50, says="LeNet-5, the best of four learning rates"),
           Trial("lenet5-plateau", "topk:ratio=0.01", ratio=50, says="LeNet-5, ten epochs, cosine"),
           Trial("resnet20", "topk:ratio=0.01", ratio=50, says="ResNet-20"),
           Trial("gpt-nano", "topk:ratio=0.01", ratio=50, says="a language model")),
          "Minutes of training for days; the start of a training, where gradients are largest, weighs more here."),
    Claim("dgc", "Deep gradient compression sends 0.1 % and loses nothing", "Lin et al., ICLR 2018, arXiv 1712.01887, sections 3 and 4",
          "Momentum correction, factor masking and a warm-up make a density of 0.1 % as accurate as SGD, at 270 to 600 times fewer bytes.",
          (Trial("lenet5-own-momentum", "dgc:ratio=0.001,vectors=sparse", 1.0, MAIN, "payload at the end", 270, says="0.1 %, warm-up, the paper's ratio"),
           Trial("lenet5-own-momentum", "dgc:ratio=0.001,vectors=dense", 1.0, MAIN, "payload at the end", 100, says="0.1 %, warm-up, biases sent whole"),
           Trial("lenet5-own-momentum", "dgc:ratio=0.01", 1.0, MAIN, "payload at the end", 40, says="1 %, warm-up")),
          SMALL + "0.1 % of LeNet-5 are a few dozen elements, and the warm-up is a tenth of a training of three epochs. Gradients are not clipped."),
    Claim("powersgd", "Rank 2 trains like SGD, rank 1 nearly so", "Vogels et al., NeurIPS 2019, arXiv 1905.13727, sections 5.1 to 5.3",
          "ResNet-18 on CIFAR-10: 94.4 % with rank 2 and 93.6 % with rank 1, 94.3 % with SGD, at 136 and 243 times fewer bytes; an LSTM needs rank "
          "4. The first tenth "
          "of the steps is better left uncompressed (the authors' code).",
          (Trial("lenet5", "powersgd:rank=2", ratio=10, says="rank 2, LeNet-5"), Trial("lenet5", "powersgd:rank=1", ratio=10, says="rank 1, LeNet-5"),
           Trial("lenet5-rates", "powersgd:rank=1", kind="payload at the end", ratio=10,
                 says="rank 1 after a tenth uncompressed, the best of four learning rates"),
           Trial("lenet5-plateau", "powersgd:rank=1", kind="payload at the end", ratio=10, says="rank 1 after a tenth uncompressed, ten epochs, cosine"),
           Trial("lenet5", "powersgd:rank=4", ratio=10, says="rank 4, LeNet-5"),
           Trial("lenet5", "powersgd:rank=2,warm_start=on", kind="payload at the end", ratio=10, says="rank 2 after a tenth uncompressed"),
           Trial("resnet20", "powersgd:rank=2", ratio=10, says="rank 2, ResNet-20"),
           Trial("gpt-nano", "powersgd:rank=4", ratio=5, says="rank 4, a language model")),
          "The ratio follows from the shapes of matrices, which are small here: 10 (5 where matrices are 48 wide) is asked for in the place of 136."),
    Claim("qsgd", "4-bit QSGD trains like SGD", "Alistarh et al., NeurIPS 2017, arXiv 1610.02132, section 5",
          "Networks for images and speech reach the accuracy of SGD with 4 to 8 bits.",
          (Trial("lenet5", "qsgd:bits=4,bucket=512", ratio=7.5, says="LeNet-5"), Trial("resnet20", "qsgd:bits=4,bucket=512", ratio=7.5, says="ResNet-20"),
           Trial("gpt-nano", "qsgd:bits=4,bucket=512", ratio=7.5, says="a language model")),
          SMALL + "buckets have 512 elements, in layers that hold few of them."),
    Claim("terngrad", "Three values for an element cost at most two points", "Wen et al., NeurIPS 2017, arXiv 1705.07878, abstract and section 5",
          "AlexNet loses nothing, GoogLeNet less than 2 points on average, at 2 bits an element.",
          (Trial("lenet5", "terngrad", ratio=15, says="LeNet-5"), Trial("resnet20", "terngrad", 2.0, ratio=15, says="ResNet-20")),
          SMALL + "dropout and weight decay were not adapted, as the authors advise for AlexNet."),
    Claim("efsignsgd", "Error feedback makes signs train like SGD", "Karimireddy et al., ICML 2019, arXiv 1901.09847, sections 4 and 6",
          "Signs alone may fail to converge or to generalise; with the error fed back they reach the accuracy of SGD at one bit an element.",
          (Trial("lenet5", "efsignsgd", ratio=30, says="LeNet-5"),
           Trial("lenet5-rates", "efsignsgd", ratio=30, says="LeNet-5, the best of four learning rates"),
           Trial("lenet5-plateau", "efsignsgd", ratio=30, says="LeNet-5, ten epochs, cosine"),
           Trial("resnet20", "efsignsgd", ratio=30, says="ResNet-20"),
           Trial("gpt-nano", "efsignsgd", ratio=30, says="a language model"),
           Trial("lenet5", "efsignsgd", 0.0, ("lenet5", "signsgd"), says="better than signs at the rate of SGD"),
           Trial("lenet5", "efsignsgd", 0.0, ("lenet5-sign-0.001", "signsgd:scale=none"), says="better than signs at a rate of 0.001"),
           Trial("lenet5", "efsignsgd", 0.0, ("lenet5-sign-0.0001", "signsgd:scale=none"), says="better than signs at a rate of 0.0001")),
          "VGG-11 and ResNet-18 on CIFAR in the paper. Two rates for plain signs are no search for the best one.", ("efsignsgd", "signsgd")),
    Claim("onebit", "One bit an element costs hardly any accuracy", "Seide et al., Interspeech 2014, abstract and section 3",
          "Speech networks lose next to nothing with signs, two means a column, and the error added to the next minibatch.",
          (Trial("lenet5", "onebit", ratio=16, says="LeNet-5"),
           Trial("lenet5-rates", "onebit", ratio=16, says="LeNet-5, the best of four learning rates"),
           Trial("lenet5-plateau", "onebit", ratio=16, says="LeNet-5, ten epochs, cosine"),
           Trial("resnet20", "onebit", ratio=10, says="ResNet-20"),
           Trial("gpt-nano", "onebit", ratio=10, says="a language model")),
          "Columns are short here, and their two means weigh more than in layers of 2,048 units; no AdaGrad, no first hours without quantisation."),
    Claim("natural", "Powers of two cost nothing", "Horvath et al., 2019, arXiv 1905.10988, section 5",
          "Rounded at random to powers of two, 9 bits an element, networks train as before (variance grows by at most an eighth).",
          (Trial("lenet5", "natural", ratio=3.5, says="LeNet-5"), Trial("gpt-nano", "natural", ratio=3.5, says="a language model")),
          SMALL + "the code is the plain one for float32."),
    Claim("oktopk", "A sparse all-reduce of the top 1 % trains like SGD", "Li and Hoefler, PPoPP 2022, sections 3 and 5",
          "VGG, LSTM and BERT converge as with a dense all-reduce, at no more than 6 k (p - 1)/p values a rank.",
          (Trial("lenet5", "oktopk:ratio=0.01", kind="wire", ratio=33, says="LeNet-5, on the wire n / 3 k"),
           Trial("lenet5-rates", "oktopk:ratio=0.01", kind="wire at the end", ratio=33,
                 says="the same after a tenth uncompressed, the best of four learning rates"),
           Trial("resnet20", "oktopk:ratio=0.01", kind="wire", ratio=33, says="ResNet-20"),
           Trial("gpt-nano", "oktopk:ratio=0.01", kind="wire", ratio=33, says="a language model"),
           Trial("lenet5", "oktopk:ratio=0.01", 1.0, ("lenet5", "topk:ratio=0.01"), says="like top-k of each rank")),
          "The authors leave the first 512 iterations uncompressed; here none is, or the first tenth.", ("oktopk", "topk")),
    Claim("thc", "Homomorphic quantisation keeps accuracy", "Li et al., NSDI 2024, arXiv 2302.08545, section 8",
          "Rotated, clamped and rounded to a shared table of 3 or 4 bits, with error feedback, networks for images and language reach the accuracy "
          "of the uncompressed ones; sums travel in bytes.",
          (Trial("lenet5", "thc:bits=4", kind="wire", ratio=5, says="4 bits, LeNet-5"),
           Trial("lenet5", "thc:bits=3", kind="wire", ratio=5, says="3 bits, LeNet-5"),
           Trial("resnet20", "thc:bits=4", kind="wire", ratio=5, says="4 bits, ResNet-20"),
           Trial("gpt-nano", "thc:bits=4", kind="wire", ratio=5, says="4 bits, a language model")),
          SMALL + "a bucket is the whole model, so layers of different scale share a norm."),
    Claim("arctopk", "The same rows on all ranks are as good as top-k, and better than random-k",
          "Chen et al., ARC-Top-K, arXiv 2510.26709, abstract and experiments",
          "A fifth of the rows of each matrix, chosen alike on all ranks by a shared random projection, trains language models as well as the fifth of "
          "the elements that top-k takes, and random-k is left behind.",
          (Trial("gpt-nano-rows", "arctopk:ratio=0.2", 1.0, ("gpt-nano-rows", "topk:ratio=0.2"), ratio=3, says="like top-k"),
           Trial("gpt-nano-rows", "arctopk:ratio=0.2", 0.0, ("gpt-nano-rows", "randomk:ratio=0.2"), ratio=3, says="better than random-k"),
           Trial("gpt-nano-rows", "arctopk:ratio=0.2", 1.0, ratio=3, says="like uncompressed training")),
          SMALL + "gpt-nano learns 1000 steps with AdamW; the authors leave as many uncompressed and recommend EF21 with momentum, here is a residual from "
          "the first step on. In matrices of 48 columns nearly a third of what is sent is the projection.",
          ("arctopk", "topk", "randomk")),
)


def relevant(claim, results):
    """Arms of the claim's codecs in all campaigns that ran."""
    codecs = claim.codecs or (claim.method,)
    return [arm for arms in results.arms.values() for arm in arms.values() if arm.codec in codecs and not math.isnan(arm.payload)]
