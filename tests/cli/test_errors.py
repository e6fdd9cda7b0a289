"""What a user can do wrong: one line on stderr, exit code 2, nothing half-written left behind."""

import pytest

pytestmark = pytest.mark.usefixtures("wrong_things")

# Words the command does not know


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ("trian", "unknown command 'trian'; did you mean 'train'?"),
        ("evaluate", "unknown command 'evaluate'; did you mean 'eval'?"),
        ("--verbose", "unknown command '--verbose'; "),
        ("xyz", "unknown command 'xyz'; known: "),
        ("weights fad", "unknown weight 'fad'; did you mean 'fade'?"),
        ("weights --jsn", "unknown flag --jsn; did you mean '--json'? (gradmass weights --help)"),
        ("weights fade grpo", "unexpected argument 'grpo' (gradmass weights --help)"),
        ("weights mine.py:Nope", "weight 'mine.py:Nope': mine.py has no Weight 'Nope'"),
        ("weights mine.py:NoWeight", "weight 'mine.py:NoWeight': mine.py has no Weight 'NoWeight'"),
        ("weights nope.py:Nan", "weight 'nope.py:Nan': there is no file nope.py"),
        ("train demo --weight fad", "unknown weight 'fad'; did you mean 'fade'?"),
        ("train demo --wieght fade", "unknown flag --wieght; did you mean '--weight'?"),
        ("train demo --wieght=fade", "unknown flag --wieght; did you mean '--weight'?"),
        ("train demo --trian.steps 1", "unknown flag --trian.steps; did you mean '"),
        (
            "train demo --train.step 1",
            "unknown key 'train.step' in the flags; did you mean 'steps'?",
        ),
        (
            "train demo --probe.weight grpo fade",
            "unknown key 'probe.weight' in the flags; did you mean 'weights'?",
        ),
        (
            "train demo --weight grpo --weight.alpha 1",
            "unknown key 'weight.alpha' in demo and the flags",
        ),
        (
            "train demo --group-size 4",
            "unknown flag --group-size; did you mean '--train.group_size'?",
        ),
        ("train demo --lr 1", "unknown flag --lr; did you mean '--optim.lr'?"),
        ("train demo --dryrun", "unknown flag --dryrun; did you mean '--dry-run'?"),
        ("train demo -v", "unexpected argument '-v'"),
        ("train demo demo", "unexpected argument 'demo'"),
        ("train demo --task countdwn", "unknown task 'countdwn'; did you mean 'countdown'?"),
        ("train demo --task zzz", "unknown task 'zzz'; known: aime, apps, code_contests, "),
        ("train dem", "there is no recipe 'dem'; give a TOML file or a shipped one (demo,"),
        ("train typo.toml", "unknown key 'evl' in typo.toml; did you mean 'eval'?"),
        ("sft sft_countdown --weight fade", "unknown flag --weight"),
        ("sft --model.hiden_size 8", "unknown key 'model.hiden_size' in the flags; did you mean"),
        ("eval countdown-tiny --tsk.seed 3", "unknown flag --tsk.seed; did you mean '--task'?"),
        ("eval --num-sampls 3", "unknown flag --num-sampls; did you mean '--num-samples'?"),
        ("eval countdown-tiny --task.sed 3", "unknown key 'task.sed' in the flags; did you mean"),
        ("report --outt x run", "unknown flag --outt; did you mean '--out'?"),
        ("demo --steps 3", "unknown flag --steps; "),
        ("demo demo", "unexpected argument 'demo'"),
    ],
)
def test_an_unknown_word_is_refused_with_the_nearest(refused, argv, wanted):
    assert refused(*argv.split()).startswith(wanted)


# Values that cannot be used


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ("train", "train needs a recipe: a TOML file, or demo"),
        ("train .", "there is no recipe '.'"),
        ("train used", "there is no recipe 'used'"),
        ("train half.toml", "cannot read recipe half.toml: Invalid value"),
        ("train binary.toml", "cannot read recipe binary.toml: 'utf-8' codec can't decode"),
        ("train sft_countdown", "unknown key 'model.hidden_size' in sft_countdown"),
        ("train demo --seed", "flag --seed needs a value"),
        ("train demo --seed -1", "seed must be at least 0, got -1"),
        ("train demo --seed one", "seed must be a whole number, got 'one' in demo and the flags"),
        ("train demo --weight", "flag --weight needs a value"),
        ("train demo --weight=", "unknown weight ''; known: "),
        ("train demo --weight 3", "--weight needs a name, got 3"),
        ("train demo --weight power_asym", "weight.alpha has no default: give it a value in "),
        ("train demo --weight power --weight.alpha=1e999", "power needs a finite alpha above 0"),
        ("train demo --weight power --weight.alpha nan", "power needs a finite alpha above 0"),
        ("train demo --weight.ema 2", "fade needs ema in (0, 1], got 2.0"),
        ("train demo --train.steps 0", "train.steps must be at least 1, got 0"),
        ("train demo --train.steps=-1", "train.steps must be at least 1, got -1"),
        ("train demo --train.steps 1e3", "train.steps must be a whole number, got 1000.0"),
        ("train demo --train.threads 99999999999", "train.threads must be within 0 to 1024"),
        (
            "train demo --train.group_size 1 --weight grpo",
            "train.group_size = 1: weight grpo compares the rollouts of a group and needs at "
            "least 2 (reinforce does not)",
        ),
        (
            "train demo --train.num_problems 31",
            "train.num_problems = 31 is fewer than a batch needs (train.prompts_per_step = 32)",
        ),
        (
            "train demo --optim.betas 0.9 0.99",
            "--optim.betas takes a list as one argument, such as '[0.9, 0.99]', got '0.9 0.99'",
        ),
        (
            "train demo --probe.weights=[grpo,power:alpha=2,n=1] --seed 3",
            "--probe.weights takes a list as one argument, such as "
            """'["grpo", "power:alpha=2,n=1"]', got '[grpo,power:alpha=2,n=1]'""",
        ),
        (
            "train demo --probe.weights [grpo, fade]",
            """--probe.weights takes a list as one argument, such as '["grpo", "fade"]', got""",
        ),
        (
            "sft --lora.targets q_proj",
            """--lora.targets takes a list as one argument, such as '["q_proj"]', got 'q_proj'""",
        ),
        ("train demo --optim.betas", "flag --optim.betas needs a value"),
        ("train demo --optim.betas [0.9,2]", "optim.betas must be within [0, 1), got [0.9, 2.0]"),
        ("train demo --optim.lr nan", "optim.lr must be finite and above 0, got nan"),
        ("train demo --task.max_number 1", "countdown needs max_number >= 2, got 1"),
        ("train demo --task.seed x", "task.seed must be a whole number, got 'x'"),
        ("train demo --seed.x 1", "--seed.x sets a field of seed, which is 0 in demo"),
        ("train demo --model.path nowhere", "no model at 'nowhere': not a folder in Hugging Face"),
        ("train demo --weight mine.py:Formless", "weight 'mine.py:Formless' does not define"),
        ("train demo --out used", "output folder used is already used; name another with --out"),
        ("train demo --out file", "output folder file is already used; name another with --out"),
        ("train demo --out .", "output folder . is already used; name another with --out"),
        ("train demo --out file/x", "cannot write to output folder file/x: Not a directory"),
        ("train demo --out /proc/x", "cannot write to output folder /proc/x: No such file"),
        ("train demo --out", "--out needs a value"),
        ("train --resume", "--resume needs --out, the run directory to continue"),
        ("train --resume --out used", "used is no run directory: it has no config.json"),
        ("train --resume --out gone", "gone is no run directory: there is no such folder"),
        ("train --resume --out file", "file is no run directory: it is a file"),
        ("demo --out used", "output folder used is already used; name another with --out"),
        ("demo --out file", "output folder file is already used; name another with --out"),
        ("demo --train.steps 0", "train.steps must be at least 1, got 0"),
        ("demo --weight grpo", "demo compares fade and grpo as they are; for another weight: "),
        ("demo --weight.ema 0.1", "demo compares fade and grpo as they are; for another weight: "),
        ("eval", "missing MODEL (gradmass eval --help)"),
        ("eval nowhere", "no model at 'nowhere': not a folder in Hugging Face format"),
        ("eval used", "no model at 'used': not a folder in Hugging Face format"),
        ("eval countdown-tiny --limit 0", "--limit must be at least 1, got 0"),
        ("eval countdown-tiny --num-samples -1", "--num-samples must be at least 0, got -1"),
        ("eval countdown-tiny --num-samples x", "--num-samples: invalid literal for int()"),
        ("eval countdown-tiny --num-samples", "--num-samples needs a value"),
        ("eval countdown-tiny --max-new-tokens 0", "--max-new-tokens must be at least 1, got 0"),
        ("eval countdown-tiny --seed -1", "--seed must be at least 0, got -1"),
        ("eval countdown-tiny --task nope", "unknown task 'nope'; known: aime, apps, "),
        ("report", "a report needs at least one run directory, got none"),
        ("report used", "used is no run directory: it has no config.json"),
        ("report gone", "gone is no run directory: there is no such folder"),
        ("sft nope", "there is no recipe 'nope'"),
        ("sft demo", "unknown key 'weight' in demo; known: data, lora, model, prompt, seed"),
        ("sft --out used", "output folder used is already used; name another with --out"),
        ("sft --out file", "output folder file is already used; name another with --out"),
        ("sft --out file/x", "cannot write to output folder file/x: Not a directory"),
        ("sft --out /proc/x", "cannot write to output folder /proc/x: No such file"),
        ("sft --seed 99999999999999999999", "seed must be at least 0 and below 2^63"),
        ("sft --model.hidden_size 7", "model.hidden_size must be a multiple of 2 *"),
        ("sft --train.weight_decay nan", "train.weight_decay must be finite and at least 0"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(refused, argv, wanted):
    assert refused(*argv.split()).startswith(wanted)


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ([""], "unknown command ''"),
        (["two\nlines"], "unknown command 'two\\nlines'"),
        (["weights", ""], "unknown weight ''"),
        (["weights", "é\n"], "unknown weight 'é\\n'"),
        (["train", ""], "there is no recipe ''"),
        (["train", "two\nlines.toml"], "there is no recipe 'two\\nlines.toml'"),
        (["train", "a" * 5000], "cannot read recipe aaaa"),
        (["train", "demo", "--out", ""], "output folder . is already used"),
        (["train", "demo", "--out", "file/two\nlines"], "cannot write to output folder file/two l"),
        (["train", "demo", "--out", "x" * 300], "cannot write to output folder xxxx"),
        (["train", "demo", "--seed", "9" * 5000], "seed must be a whole number, got '9999"),
        (["train", "demo", "--optim.lr", "9" * 400], "optim.lr must be a number, got 9999"),
        (["train", "demo", "--model.path", ""], "no model at ''"),
        (["train", "demo", "--wei\nght", "x"], "unknown flag --wei ght"),
        (["train", "--resume", "--out", ""], ". is no run directory: it has no config.json"),
        (["eval", ""], "no model at ''"),
        (["report", ""], ". is no run directory"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_odd_arguments_are_refused_on_one_line(refused, argv, wanted):
    assert refused(*argv).startswith(wanted)
