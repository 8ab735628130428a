"""The trainings: one `gradtool train` command for each campaign. A campaign is one setting (model, data, optimiser, schedule) in which
several arms, codecs with their parameters, are trained beside `none` from the same seeds.
"""
import dataclasses

SEEDS = (1, 2, 3, 4, 5)
FULL = {"lenet5": 1404, "resnet20": 540, "resnet20-fashion": 200, "gpt-nano": 1000, "gpt-nano-rows": 1000,
        "lenet5-cifar": 780, "char-rnn": 1000, "lenet5-plateau": 4680}  # steps; 1404 are three epochs of Fashion-MNIST, 4,680 ten
# Processor seconds that a step takes, mean over the arms of a campaign, as measured on two cores of a Xeon server in 2026.
STEP_SECONDS = {"mlp": 0.012, "lenet5": 0.023, "resnet20": 0.33, "gpt-nano": 0.29, "char-rnn": 0.06}
MICRO_BATCHES_TAKE = 1.9  # times as much, with 8 of them
QUICK = {"lenet5": 8, "resnet20": 4, "resnet20-fashion": 4, "gpt-nano": 4, "gpt-nano-rows": 4, "lenet5-cifar": 8, "char-rnn": 4, "lenet5-plateau": 8}


@dataclasses.dataclass(frozen=True)
class Campaign:
    name: str
    model: str
    steps: int
    arms: tuple
    options: tuple = ()  # of gradtool train, beside those that every campaign has
    data: tuple = ()  # --dataset and --data-dir
    batch: int = 32
    seeds: tuple = SEEDS
    missing: str = ""  # why it cannot run; empty: it can
    compared_with: str = ""  # the campaign whose none the arms are compared with; empty: their own
    replay: bool = False  # whether the same model is captured, and the same arms replayed

    @property
    def hours(self):
        """About so many processor hours, with all arms and seeds."""
        times = MICRO_BATCHES_TAKE if "--micro-batches" in self.options else 1
        runs = len(self.seeds) + (len(RATES) - 1 if "--lr-factors" in self.options else 0)
        return (len(self.arms) + 1) * runs * self.steps * STEP_SECONDS[self.model] * times / 3600


def warm_up(steps):
    """The tenth of a training that PowerSGD's authors advise to leave uncompressed, and DGC's four stages together."""
    return max(1, steps // 10)


def lenet5(steps):
    """Codecs that need nothing special from the trainer. Left out: noop sends nothing, zstd and exponent lose nothing."""
    return ("adacomp", "atomo:s=3", "bf16", "dct:ratio=0.01", "dlcp", "efsignsgd", "fft:theta=0.85,bits=10", "fp16", "fp8",
            f"gradiveq:lt=100,lc=400,warmup={steps // 18}", "int8", "iwp:density=0.01,roots=1", "iwp:density=0.01,roots=2",
            "lhc:density=0.01", "mx:format=e4m3", "mx:format=e2m1", "natural", "oktopk:ratio=0.01", "onebit", "powersgd:rank=1",
            "powersgd:rank=2", "powersgd:rank=4", f"powersgd:rank=2,warm_start=on,start_iteration={warm_up(steps)}", "qgz:node=2", "qsgd:bits=2,bucket=128",
            "qsgd:bits=3,bucket=512", "qsgd:bits=4,bucket=512", "randomk:ratio=0.01", "sidco:ratio=0.01", "signsgd",
            "sketch:ratio=0.01", "strom:tau=0.01", "strom:tau=0.1", "terngrad", "thc:bits=3", "thc:bits=4", "topk:ratio=0.01",
            "topk:ratio=0.001", "zfp:rate=8")


# The methods of 2023 to 2026, in the setting of lenet5. Left out: demo, dion and dion2, whose results are no gradients but updates of an
# optimizer of their own, with a learning rate of its own.
RECENT = ("dynamiq", "fp8:scale=row", "mx:format=e3m0", "nvfp4", "nvfp4:hadamard=on,rounding=stochastic", "optireduce", "optireduce:loss=0.1",
          "sdp4bit", "sdp4bit:rounding=stochastic", "sparseloco", "topk:ratio=0.01,ef=ef21", "uint8")


def own_momentum(steps):
    """Methods that bring momentum of their own, so that the optimiser has none; they are compared with none with momentum."""
    stage = max(1, steps // 50)  # IWP's warm-up has five stages
    return ("dgc:ratio=0.001", f"dgc:ratio=0.001,warmup={warm_up(steps)},vectors=dense", f"dgc:ratio=0.001,warmup={warm_up(steps)},vectors=sparse",
            f"dgc:ratio=0.01,warmup={warm_up(steps)}", "iwp:density=0.01,roots=1,mu=0.9", "iwp:density=0.01,roots=2,mu=0.9",
            f"iwp:density=0.001,roots=1,mu=0.9,warmup={stage}", "iwp:policy=fixed,threshold=0.005,roots=1,mu=0.9",
            "iwp:policy=fixed,threshold=0.01,roots=1,mu=0.9", "iwp:policy=fixed,threshold=0.1,roots=1,mu=0.9",
            "iwp:policy=mean_std,roots=1,mu=0.9", "iwp:policy=dispersion,roots=1,mu=0.9", "sketch:ratio=0.01,mu=0.9")


def fft_schedules(drop):
    """Table of section 4.2 (vanilla top-k, 3-bit QSGD, unclipped TernGrad), and theta that falls when the learning rate does."""
    return ("fft:theta=0.85,bits=10", "fft:theta=0.5,bits=10", "fft:theta=0.9,bits=10", "fft:theta=0.99,bits=10",
            f"fft:theta=0.9,bits=10,schedule=drop,drop_at={drop}", f"fft:theta=0.99,bits=10,schedule=drop,drop_at={drop}",
            "fft:theta=0.9,bits=10,schedule=sqrt_lr", "topk:ratio=0.15,ef=off", "qsgd:bits=3", "terngrad:clip=off")


# alpha' = 1, 1.5 and 2 on the variance of samples, as the streaming test has it for K = 8 micro-batches: alpha' K / (K - 1 + alpha').
MICRO_BATCHES = 8
ALPHAS = {a: f"{a * MICRO_BATCHES / (MICRO_BATCHES - 1 + a):.4g}" for a in (1, 1.5, 2)}
VGC = tuple(f"vgc:alpha={alpha},zeta=0.999" for alpha in ALPHAS.values())
HYBRIDS = tuple(f"vgc:alpha={ALPHAS[2]},zeta=0.999,tau={tau}" for tau in ("0.01", "0.1"))
LOSSES = ("0.01", "0.03", "0.1", "0.2", "0.3")
RANDOM_LOSS = tuple(f"dlcp:model=iid,loss={loss},bound=1" for loss in LOSSES)
# How fast the marked queue drains decides what it loses; what that was is measured on a capture (losses.csv).
MARKED_LOSS = tuple(f"dlcp:model=importance,drain={drain},bound=1" for drain in ("0.995", "0.972", "0.89", "0.775", "0.655"))

GRADIVEQ_WARM_UP = 2500 / 45000  # of the paper's training


def resnet20(steps):
    return ("dlcp:model=iid,loss=0.03,bound=1", "efsignsgd", "fft:theta=0.85,bits=10",
            f"gradiveq:lt=100,lc=400,warmup={round(steps * GRADIVEQ_WARM_UP)}", f"gradiveq:lt=20,lc=80,warmup={round(steps * GRADIVEQ_WARM_UP)}",
            "iwp:density=0.01,roots=1", "oktopk:ratio=0.01", "onebit", "powersgd:rank=2", "qsgd:bits=4,bucket=512", "terngrad", "thc:bits=4",
            "topk:ratio=0.01")


GPT_NANO = ("dlcp:model=iid,loss=0.03,bound=1", "efsignsgd", "fft:theta=0.85,bits=10", "fp8", "natural", "oktopk:ratio=0.01", "onebit",
            "powersgd:rank=4", "qsgd:bits=2,bucket=128", "qsgd:bits=4,bucket=512", "strom:tau=0.001", "thc:bits=4", "topk:ratio=0.01")

# Equally many elements, as ARC-Top-K's authors compare: rows that all ranks choose alike, each rank's largest, and drawn ones.
ROWS = ("arctopk:ratio=0.2", "topk:ratio=0.2", "randomk:ratio=0.2")

# One codec of each kind and size of error, for what a replay says about a training of another model, optimizer or data. No claim rests on them.
SETTING = ("dlcp:model=iid,loss=0.03,bound=1", "efsignsgd", "fft:theta=0.85,bits=10", "fp8", "mx:format=e2m1", "natural", "onebit", "powersgd:rank=2",
           "powersgd:rank=4", "qsgd:bits=2,bucket=128", "qsgd:bits=4,bucket=512", "terngrad", "thc:bits=4", "topk:ratio=0.01", "topk:ratio=0.1")
RATES = ("2", "1", "0.5", "0.2")  # times none's


def own_rates(steps):
    """Codecs that lose at the rate that was tuned for none, with their authors' beginnings. The first seed tries rates and does not judge."""
    return ("efsignsgd", "fft:theta=0.85,bits=10", f"oktopk:ratio=0.01,warmup={warm_up(steps)}", "onebit",
            f"powersgd:rank=1,warm_start=on,start_iteration={warm_up(steps)}", "topk:ratio=0.01")


def long_training(steps):
    """Codecs whose claims fail or stay open in three epochs, in a training that goes on until none gains nothing more."""
    return ("efsignsgd", "fft:theta=0.85,bits=10", "onebit", f"powersgd:rank=1,warm_start=on,start_iteration={warm_up(steps)}", "topk:ratio=0.01")


NEAR = ("dlcp:model=iid,loss=0.03,bound=1", "mx:format=e2m1", "natural", "qsgd:bits=4,bucket=512")


def all_campaigns(options):
    """options: quick, cifar, text, fashion_mnist as run.py has them."""
    counts = QUICK if options.quick else FULL
    steps, drop = counts["lenet5"], counts["lenet5"] * 2 // 3
    fashion = ("--dataset", "fashion-mnist", "--data-dir", options.fashion_mnist)
    cifar = ("--dataset", "cifar10", "--data-dir", options.cifar or "")
    deep = counts["resnet20" if options.cifar else "resnet20-fashion"]
    found = [
        Campaign("lenet5", "lenet5", steps, lenet5(steps), data=fashion, replay=True),
        Campaign("lenet5-recent", "lenet5", steps, RECENT, data=fashion, replay=True),
        Campaign("lenet5-dlcp", "lenet5", steps, RANDOM_LOSS + MARKED_LOSS, data=fashion),
        Campaign("lenet5-fft", "lenet5", steps, fft_schedules(drop), ("--lr-schedule", f"step:{drop}:0.1"), fashion),
        Campaign("lenet5-own-momentum", "lenet5", steps, own_momentum(steps), ("--momentum", "0"), fashion, compared_with="lenet5"),
        Campaign("lenet5-vgc", "lenet5", steps, (*VGC, *HYBRIDS, "strom:tau=0.01", "strom:tau=0.1", "qsgd:bits=4,bucket=512"),
                 ("--micro-batches", str(MICRO_BATCHES)), fashion, replay=True),
        Campaign("lenet5-vgc-adam", "lenet5", steps, (*VGC, *HYBRIDS, "strom:tau=0.01", "strom:tau=0.1", "qsgd:bits=4,bucket=512"),
                 ("--micro-batches", str(MICRO_BATCHES), "--optimizer", "adam"), fashion),
        Campaign("lenet5-rates", "lenet5", steps, own_rates(steps), ("--lr-factors", ",".join(RATES)), fashion, seeds=(6, *SEEDS)),
        Campaign("lenet5-plateau", "lenet5", counts["lenet5-plateau"], long_training(counts["lenet5-plateau"]), ("--lr-schedule", "cosine"), fashion),
        # The paper's signs of size 1 want a rate of their own; two are tried.
        *(Campaign(f"lenet5-sign-{rate}", "lenet5", steps, ("signsgd:scale=none", "signsgd:momentum=0.9,scale=none"),
                   ("--momentum", "0", "--lr", rate), fashion, compared_with="lenet5") for rate in ("0.001", "0.0001")),
        Campaign("gpt-nano", "gpt-nano", counts["gpt-nano"], GPT_NANO, ("--optimizer", "adamw", "--lr", "0.001"),
                 ("--dataset", "text", "--data-dir", options.text or ""), batch=8, replay=True,
                 missing="" if options.text else "no text was given (--text FILE)"),
        Campaign("gpt-nano-rows", "gpt-nano", counts["gpt-nano-rows"], ROWS, ("--optimizer", "adamw", "--lr", "0.001"),
                 ("--dataset", "text", "--data-dir", options.text or ""), batch=8,
                 missing="" if options.text else "no text was given (--text FILE)"),
        Campaign("resnet20", "resnet20", deep, resnet20(deep), ("--lr-schedule", "cosine"), cifar if options.cifar else fashion, batch=16,
                 replay=True),
        Campaign("mlp", "mlp", steps, SETTING, data=fashion, seeds=(1, 2, 3), replay=True),
        Campaign("mlp-adamw", "mlp", steps, SETTING, ("--optimizer", "adamw", "--lr", "0.001"), fashion, seeds=(1, 2, 3), replay=True),
        Campaign("lenet5-adamw", "lenet5", steps, SETTING, ("--optimizer", "adamw", "--lr", "0.001"), fashion, seeds=(1, 2, 3), replay=True),
        Campaign("lenet5-cifar", "lenet5", counts["lenet5-cifar"], SETTING, ("--lr-schedule", "cosine"), cifar, seeds=(1, 2, 3), replay=True,
                 missing="" if options.cifar else "no CIFAR-10 was given (--cifar FOLDER)"),
        Campaign("char-rnn", "char-rnn", counts["char-rnn"], SETTING, ("--sequence-length", "16", "--optimizer", "adamw", "--lr", "0.01"),
                 ("--dataset", "text", "--data-dir", options.text or ""), batch=4, seeds=(1, 2, 3), replay=True,
                 missing="" if options.text else "no text was given (--text FILE)"),
        # Runs of ResNet-20 scatter by more than a point: more seeds for the arms that lose little.
        Campaign("resnet20-near", "resnet20", deep, NEAR, ("--lr-schedule", "cosine"), cifar if options.cifar else fashion, batch=16,
                 seeds=(4, 5, 6), replay=True),
    ]
    if options.quick:
        # One seed tries learning rates, and gradtool train wants two others to judge.
        found = [dataclasses.replace(c, seeds=(1, 2, 3) if "--lr-factors" in c.options else (1, 2), options=(*c.options, "--test-images", "128")) for c in found]
    return found
