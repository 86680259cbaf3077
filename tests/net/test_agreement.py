"""Both sides of an introduction against each other, and against what an honest side never says."""

from dataclasses import replace

import pytest

from tpsl.net.agreement import RECORD_IDS, Agreement, Introduction
from tpsl.net.failures import BadMessage, NotYet, Refused
from tpsl.net.peers import LABEL_PARTY

IDS = bytes(range(32))
TERMS = {"protocol version": "1", "digest of the job": "abc", "width of the cut": "128"}
SAME = Agreement(TERMS, IDS)


def feature(agreement: Agreement = SAME, party: str = "airport") -> Introduction:
    return Introduction(party, party, agreement)


def label(agreement: Agreement = SAME, party: str = "airport") -> Introduction:
    return Introduction(LABEL_PARTY, party, agreement.with_party(party))


def introduced(one: Introduction, other: Introduction) -> tuple[Introduction, Introduction]:
    """Both after each has heard the other's fields and nonce."""
    one.compare(other.fields())
    other.compare(one.fields())
    return one, other


def test_two_that_hold_the_same_prove_it_to_each_other() -> None:
    one, other = introduced(feature(), label())
    other.require_proof(one.proof())
    one.require_proof(other.proof())


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
    with pytest.raises(Refused, match=sentence) as at_label:
        label(party="bank").compare(feature(Agreement(theirs, IDS), "bank").fields())
    # A label party that does not compare is found out by the feature party, with the very same sentence.
    with pytest.raises(Refused) as at_feature:
        feature(Agreement(theirs, IDS), "bank").compare(label(party="bank").fields())
    assert str(at_feature.value) == str(at_label.value)


def test_a_field_of_one_party_is_compared_with_that_party_alone() -> None:
    both = Agreement(TERMS, IDS, by_party={"airport": {"version": "a"}, "bank": {"version": "b"}})
    introduced(feature(Agreement({**TERMS, "version": "a"}, IDS)), label(both))
    with pytest.raises(Refused, match="version differs: the label party has 'b', feature party 'bank' has 'a'"):
        label(both, "bank").compare(feature(Agreement({**TERMS, "version": "a"}, IDS), "bank").fields())
    with pytest.raises(Refused, match="version differs: the label party has 'a', feature party 'airport' has none"):
        label(both).compare(feature().fields())


def test_a_field_that_differs_for_a_while_may_be_compared_again() -> None:
    ahead = Agreement({**TERMS, "configuration": "2"}, IDS, passing=frozenset({"configuration"}))
    behind = Agreement({**TERMS, "configuration": "1"}, IDS, passing=frozenset({"configuration"}))
    with pytest.raises(NotYet):
        label(behind).compare(feature(ahead).fields())


def test_other_record_ids_are_noticed_by_both() -> None:
    one, other = introduced(feature(Agreement(TERMS, IDS[::-1])), label())
    with pytest.raises(Refused, match=r"^the record ids differ: feature party 'airport' has other ids"):
        other.require_proof(one.proof())
    with pytest.raises(Refused, match=r"^the record ids differ: the label party has other ids"):
        one.require_proof(other.proof())


def test_a_refusal_says_what_helps_where_that_is_known() -> None:
    one, other = introduced(
        feature(Agreement(TERMS, IDS[::-1])), label(Agreement(TERMS, IDS, advice={RECORD_IDS: "find the common ones"}))
    )
    with pytest.raises(Refused, match=r"in another order; find the common ones$"):
        other.require_proof(one.proof())
    name = next(iter(TERMS))
    advised = label(Agreement(TERMS, IDS, advice={name: "talk to each other"}))
    with pytest.raises(Refused, match=r"has 'x'; talk to each other$"):
        advised.compare(feature(Agreement({**TERMS, name: "x"}, IDS)).fields())


def test_the_digest_of_the_record_ids_is_never_sent() -> None:
    one, other = introduced(feature(), label())
    said = repr([one.fields(), other.fields(), one.proof(), other.proof()])
    assert repr(IDS)[2:-1] not in said
    assert str(IDS) not in repr(SAME)


def test_a_recorded_proof_is_worth_nothing() -> None:
    one, other = introduced(feature(), label())
    recorded = one.fields(), one.proof(), other.proof()
    again = label()
    again.compare(recorded[0])
    with pytest.raises(Refused, match="record ids differ"):
        again.require_proof(recorded[1])
    fooled, _ = introduced(feature(), label())
    with pytest.raises(Refused, match="record ids differ"):
        fooled.require_proof(recorded[2])


def test_a_proof_cannot_be_sent_back_and_holds_for_one_party_only() -> None:
    one, other = introduced(feature(), label())
    with pytest.raises(Refused):
        one.require_proof(one.proof())
    with pytest.raises(Refused):
        other.require_proof(other.proof())
    bank = label(party="bank")
    bank.compare(one.fields())
    with pytest.raises(Refused):
        bank.require_proof(one.proof())


def test_nobody_is_believed_before_the_nonces_are_exchanged() -> None:
    with pytest.raises(Refused):
        label().require_proof(feature().proof())


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_nonce_has_its_length(size: int) -> None:
    for mine, theirs in ((label(), feature()), (feature(), label())):
        with pytest.raises(BadMessage):
            mine.compare(replace(theirs.fields(), secret=bytes(size)))


def test_an_agreement_that_the_other_side_could_not_read_is_an_error_here() -> None:
    with pytest.raises(ValueError, match="this job's agreement"):
        Agreement({"description": "x" * 5000}, IDS)
    with pytest.raises(ValueError, match="digest of the record ids"):
        Agreement(TERMS, b"")
