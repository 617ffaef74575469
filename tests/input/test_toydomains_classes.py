"""The classes of the seven domains and their views: functions of their numbers, the same everywhere."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from toydomains import dataset
from toydomains.domains import DOMAINS, generator, subject


@pytest.mark.slow
def test_no_class_is_described_in_both_parts_whatever_the_seed():
    phrases = {
        part: {
            (domain, subject(seed, part, domain, index).phrase)
            for domain in DOMAINS
            for index in range(60)
            for seed in (0, 1)
        }
        for part in ("benchmark", "pretrain")
    }
    assert not phrases["benchmark"] & phrases["pretrain"]
    # Labels differ as well, and within the default benchmark every class has its own phrase.
    names = [subject(0, "benchmark", p.domain, p.index) for p in dataset.plan(6000, 0, "benchmark")]
    assert max(Counter(name.phrase for name in names).values()) == 1


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_second_class_is_the_sister_of_the_one_before(domain):
    sisters = 0
    for index in range(0, 40, 2):
        elder, younger = (subject(0, "benchmark", domain, index + i) for i in (0, 1))
        assert elder.phrase != younger.phrase
        sisters += all(getattr(elder, field) == getattr(younger, field) for field in elder.kin)
    assert sisters >= 18


# 4 x 4 mean colours of view 0 of class 0 of each domain (seed 0, benchmark), a digit a channel:
# eighths of the range, from 0 to 8.
FINGERPRINTS = {
    "storefronts": "235234235234334334334334333444444433233332433433",
    "packages": "766876765655654765654444665776665444543543432322",
    "apparel": "777766766776888765655777888776777888888888888888",
    "cars": "223223333434222223223334223123123223443433433333",
    "landmarks": "334434433434544433223434434333223434444434333434",
    "illustrations": "877666666776776444555776665643543555355444344354",
    "dishes": "543444344443332343443444444443433344654455445544",
}


def fingerprint(domain):
    role = "index" if domain == "illustrations" else "both"
    what, rng = subject(0, "benchmark", domain, 0), generator(0, "benchmark", domain, 0, 1)
    small = np.asarray(what.view(rng, role).image.resize((4, 4), Image.Resampling.BOX))
    return "".join(str(level) for level in (small / 32).round().astype(int).ravel())


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_drawing_has_not_changed(domain):
    """Whoever changes a drawing raises dataset.VERSION and renews its line here."""
    levels = [[int(digit) for digit in s] for s in (fingerprint(domain), FINGERPRINTS[domain])]
    assert np.abs(np.subtract(*levels)).max() <= 1
