"""Both sides of the handshake against each other, and against what an honest side never says."""

from dataclasses import replace

import pytest

from tpsl.net.agreement import RECORD_IDS, Agreement, Introduction
from tpsl.net.codec import encode
from tpsl.net.failures import BadMessage, NotYet, Refused
from tpsl.net.messages import Message

IDS = bytes(range(32))
TERMS = {"protocol version": "1", "digest of the job": "abc", "width of the cut": "128"}
SAME = Agreement(TERMS, IDS)


def both(theirs: Agreement = SAME, ours: Agreement = SAME, party: str = "airport") -> tuple[Introduction, Introduction]:
    """Return a feature party's side and the label party's, which have compared what they hold."""
    feature, label = Introduction(party, party, theirs), Introduction("label", party, ours.with_party(party))
    label.compare(feature.fields())
    feature.compare(label.fields())
    return feature, label


def test_two_that_hold_the_same_accept_each_other() -> None:
    feature, label = both()
    label.require_proof(feature.proof())
    feature.require_proof(label.proof())


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        ({**TERMS, "protocol version": "2"}, "protocol version differs: the label party has '1', feature party 'bank'"),
        ({**TERMS, "digest of the job": "x"}, "digest of the job differs: .* has 'abc', feature party 'bank' has 'x'"),
        ({**TERMS, "protocol version": "2", "width of the cut": "64"}, "^protocol version differs"),
        ({"protocol version": "1", "width of the cut": "128"}, "digest of the job differs: .*'bank' has none"),
        ({**TERMS, "new": "1"}, "new differs: the label party has none, feature party 'bank' has '1'"),
    ],
)
def test_the_first_field_that_differs_is_named_with_both_values(theirs: dict[str, str], sentence: str) -> None:
    feature, label = Introduction("bank", "bank", Agreement(theirs, IDS)), Introduction("label", "bank", SAME)
    with pytest.raises(Refused, match=sentence) as at_label:
        label.compare(feature.fields())
    # A label party that does not compare is found out by the feature party, with the very same sentence.
    with pytest.raises(Refused) as at_feature:
        feature.compare(label.fields())
    assert str(at_feature.value) == str(at_label.value)
    assert at_label.value.code == "refused"


def test_a_field_in_which_honest_parties_differ_for_a_while_is_no_refusal() -> None:
    ahead = Agreement({**TERMS, "configuration": "2 of 3"}, IDS, passing=frozenset({"configuration"}))
    behind = replace(ahead, fields={**TERMS, "configuration": "1 of 3"})
    with pytest.raises(NotYet, match="configuration differs") as later:
        both(ahead, behind)
    assert later.value.code == "not-yet"


def test_a_field_of_one_party_is_compared_with_that_party_alone() -> None:
    ours = Agreement(TERMS, IDS, by_party={"airport": {"version": "a"}, "bank": {"version": "b"}})
    feature, label = both(Agreement({**TERMS, "version": "a"}, IDS), ours)
    label.require_proof(feature.proof())
    with pytest.raises(Refused, match="version differs: the label party has 'b', feature party 'bank' has 'a'"):
        both(Agreement({**TERMS, "version": "a"}, IDS), ours, "bank")
    with pytest.raises(Refused, match="version differs: the label party has 'a', feature party 'airport' has none"):
        both(SAME, ours)


def test_other_record_ids_are_noticed_by_both_and_what_helps_is_said() -> None:
    other = Agreement(TERMS, IDS[::-1])
    advised = Agreement(TERMS, IDS, advice={RECORD_IDS: "find the common ones", "width of the cut": "talk"})
    feature, label = both(other, advised)
    with pytest.raises(Refused, match=r"^the record ids differ: .* 'airport' .* order; find the common ones$"):
        label.require_proof(feature.proof())
    with pytest.raises(Refused, match=r"^the record ids differ: the label party has other ids"):
        feature.require_proof(label.proof())
    with pytest.raises(Refused, match=r"has '64'; talk$"):
        both(Agreement({**TERMS, "width of the cut": "64"}, IDS), advised)


def test_the_digest_of_the_record_ids_is_never_sent() -> None:
    feature, label = both()
    sent = [encode(side.fields(), "float32") for side in (feature, label)] + [feature.proof(), label.proof()]
    assert not any(IDS in each for each in sent)
    assert str(IDS) not in repr(SAME)


def test_a_recorded_handshake_is_worth_nothing() -> None:
    feature, label = both()
    again = Introduction("label", "airport", SAME)
    again.compare(feature.fields())
    with pytest.raises(Refused, match="record ids differ"):
        again.require_proof(feature.proof())
    fooled, _ = both()
    with pytest.raises(Refused, match="record ids differ"):
        fooled.require_proof(label.proof())


def test_a_proof_cannot_be_sent_back_nor_made_before_the_other_s_nonce_is_known() -> None:
    feature, label = both()
    for side in (feature, label):
        with pytest.raises(Refused, match="record ids differ"):
            side.require_proof(side.proof())
    early = Introduction("label", "airport", SAME)
    assert not early.is_proven_by(Introduction("airport", "airport", SAME).proof())
    assert not early.is_proven_by(b"")


def test_a_proof_holds_for_one_party_only() -> None:
    airport, bank = Introduction("airport", "airport", SAME), Introduction("label", "bank", SAME)
    bank.compare(airport.fields())
    airport.compare(bank.fields())
    with pytest.raises(Refused, match="record ids differ"):
        bank.require_proof(airport.proof())


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_nonce_has_its_length(size: int) -> None:
    hello = Message(secret=bytes(size), fields=tuple(TERMS.items()))
    for me, other in (("label", "feature party 'bank'"), ("bank", "the label party")):
        with pytest.raises(BadMessage, match=f"{other} sent a nonce of {size} bytes, not 32"):
            Introduction(me, "bank", SAME).compare(hello)


def test_an_agreement_that_the_other_side_could_not_read_is_an_error_here() -> None:
    with pytest.raises(ValueError, match="this job's agreement"):
        Agreement({"description": "x" * 5000}, IDS)
    with pytest.raises(ValueError, match="digest of the record ids"):
        Agreement(TERMS, b"")
