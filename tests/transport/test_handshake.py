"""Both sides of the handshake against each other, and against what an honest side never says."""

from dataclasses import replace

import pytest
from tpsl.transport import wire_pb2
from tpsl.transport.channel import Refused
from tpsl.transport.checks import BadMessage
from tpsl.transport.frames import Limits, decode, encode_control
from tpsl.transport.handshake import RECORD_IDS, Agreement, FeatureHandshake, LabelHandshake, LinkPosition, refusal

from tpsl.net.peers import WorkerPlace

IDS = bytes(range(32))
TERMS = {"protocol version": "1", "digest of the job": "abc", "width of the cut": "128"}
SAME = Agreement(TERMS, IDS)
NEW = LinkPosition(b"", 0)
HERE = LinkPosition(b"link", 7)


def label_side(agreement: Agreement = SAME) -> LabelHandshake:
    return LabelHandshake(agreement, ("airport", "bank"))


def body(frame: bytes) -> wire_pb2.Header:
    return decode(frame, Limits(0, 0), "float32", sender="test").header


def test_two_that_hold_the_same_learn_where_the_other_stands() -> None:
    feature, label = FeatureHandshake("airport", SAME), label_side()
    proof = feature.proof(label.challenge(feature.hello(), "airport"), LinkPosition(b"old link", 3))
    assert label.proven(proof) == LinkPosition(b"old link", 3)
    assert label.party == "airport"
    assert feature.welcomed(label.welcome(HERE)) == HERE


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
        label_side().challenge(FeatureHandshake("bank", Agreement(theirs, IDS)).hello(), "bank")
    # A label party that does not compare is found out by the feature party, with the very same sentence.
    careless = encode_control(
        wire_pb2.Header(
            challenge=wire_pb2.Challenge(
                nonce=bytes(32), fields=[wire_pb2.Field(name=name, value=value) for name, value in TERMS.items()]
            )
        )
    )
    with pytest.raises(Refused) as at_feature:
        FeatureHandshake("bank", Agreement(theirs, IDS)).proof(careless, NEW)
    assert str(at_feature.value) == str(at_label.value)


def test_a_field_of_one_party_is_compared_with_that_party_alone() -> None:
    both = Agreement(TERMS, IDS, by_party={"airport": {"version": "a"}, "bank": {"version": "b"}})
    feature, label = FeatureHandshake("airport", Agreement({**TERMS, "version": "a"}, IDS)), label_side(both)
    label.proven(feature.proof(label.challenge(feature.hello(), "airport"), NEW))
    assert feature.welcomed(label.welcome(HERE)) == HERE
    with pytest.raises(Refused, match="version differs: the label party has 'b', feature party 'bank' has 'a'"):
        label_side(both).challenge(FeatureHandshake("bank", Agreement({**TERMS, "version": "a"}, IDS)).hello(), "bank")
    with pytest.raises(Refused, match="version differs: the label party has 'a', feature party 'airport' has none"):
        label_side(both).challenge(FeatureHandshake("airport", SAME).hello(), "airport")


def test_other_record_ids_are_noticed_by_the_label_party() -> None:
    feature, label = FeatureHandshake("airport", Agreement(TERMS, IDS[::-1])), label_side()
    proof = feature.proof(label.challenge(feature.hello(), "airport"), NEW)
    with pytest.raises(Refused, match=r"^the record ids differ: feature party 'airport' has other ids"):
        label.proven(proof)


def test_other_record_ids_are_noticed_by_the_feature_party() -> None:
    feature, label = FeatureHandshake("airport", SAME), label_side(Agreement(TERMS, IDS[::-1]))
    feature.proof(label.challenge(feature.hello(), "airport"), NEW)
    with pytest.raises(Refused, match=r"^the record ids differ: the label party has other ids"):
        feature.welcomed(label.welcome(HERE))


def test_a_refusal_says_what_helps_where_that_is_known() -> None:
    label = label_side(Agreement(TERMS, IDS, advice={RECORD_IDS: "find the common ones"}))
    feature = FeatureHandshake("airport", Agreement(TERMS, IDS[::-1]))
    proof = feature.proof(label.challenge(feature.hello(), "airport"), NEW)
    with pytest.raises(Refused, match=r"in another order; find the common ones$"):
        label.proven(proof)
    name = next(iter(TERMS))
    other = FeatureHandshake("airport", Agreement({**TERMS, name: "x"}, IDS))
    with pytest.raises(Refused, match=r"has 'x'; talk to each other$"):
        label_side(Agreement(TERMS, IDS, advice={name: "talk to each other"})).challenge(other.hello(), "airport")


def test_the_digest_of_the_record_ids_is_never_sent() -> None:
    feature, label = FeatureHandshake("airport", SAME), label_side()
    hello = feature.hello()
    challenge = label.challenge(hello, "airport")
    proof = feature.proof(challenge, NEW)
    label.proven(proof)
    assert not any(IDS in frame for frame in (hello, challenge, proof, label.welcome(HERE)))
    assert str(IDS) not in repr(SAME)


def test_a_recorded_handshake_is_worth_nothing() -> None:
    feature, label = FeatureHandshake("airport", SAME), label_side()
    hello = feature.hello()
    proof = feature.proof(label.challenge(hello, "airport"), NEW)
    label.proven(proof)
    again = label_side()
    again.challenge(hello, "airport")
    with pytest.raises(Refused, match="record ids differ"):
        again.proven(proof)
    welcome = label.welcome(HERE)
    fooled = FeatureHandshake("airport", SAME)
    fooled.proof(label_side().challenge(fooled.hello(), "airport"), NEW)
    with pytest.raises(Refused, match="record ids differ"):
        fooled.welcomed(welcome)


def test_a_proof_cannot_be_sent_back_as_one_s_own() -> None:
    feature = FeatureHandshake("airport", SAME)
    label = label_side()
    proof = body(feature.proof(label.challenge(feature.hello(), "airport"), NEW)).proof.proof
    mirrored = encode_control(wire_pb2.Header(welcome=wire_pb2.Welcome(proof=proof, link=b"link")))
    with pytest.raises(Refused, match="record ids differ"):
        feature.welcomed(mirrored)


def test_a_proof_holds_for_one_party_only() -> None:
    airport, label = FeatureHandshake("airport", SAME), label_side()
    hello = body(airport.hello()).hello
    hello.party = "bank"
    challenge = label.challenge(encode_control(wire_pb2.Header(hello=hello)), "bank")
    with pytest.raises(Refused, match="record ids differ"):
        label.proven(airport.proof(challenge, NEW))


def test_the_certificate_decides_who_a_party_is() -> None:
    with pytest.raises(Refused, match=r"^the certificate is that of 'bank', not of 'airport'$"):
        label_side().challenge(FeatureHandshake("airport", SAME).hello(), "bank")


def test_only_parties_of_the_job_may_come() -> None:
    with pytest.raises(Refused, match=r"^'shop' is not a feature party of this job; they are airport, bank$"):
        label_side().challenge(FeatureHandshake("shop", SAME).hello(), "shop")


def test_a_refusal_reaches_the_feature_party() -> None:
    with pytest.raises(Refused, match=r"^the label party refuses: width of the cut differs$"):
        FeatureHandshake("airport", SAME).proof(refusal("width of the cut\ndiffers"), NEW)
    with pytest.raises(Refused, match=r"^the label party refuses: no$"):
        FeatureHandshake("airport", SAME).welcomed(refusal("no"))


def test_everything_has_its_turn() -> None:
    feature, label = FeatureHandshake("airport", SAME), label_side()
    hello = feature.hello()
    challenge = label.challenge(hello, "airport")
    proof = feature.proof(challenge, NEW)
    with pytest.raises(BadMessage, match="feature party 'airport' sent proof in a handshake where hello was due"):
        label_side().challenge(proof, "airport")
    with pytest.raises(BadMessage, match="feature party 'airport' sent hello in a handshake where proof was due"):
        label.proven(hello)
    with pytest.raises(BadMessage, match="the label party sent challenge in a handshake where welcome was due"):
        feature.welcomed(challenge)
    with pytest.raises(BadMessage, match="a connection sent 6 bytes that do not begin with a header"):
        label_side().challenge(b"random", None)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_nonce_has_its_length(size: int) -> None:
    fields = [wire_pb2.Field(name=name, value=value) for name, value in TERMS.items()]
    hello = wire_pb2.Header(hello=wire_pb2.Hello(party="bank", nonce=bytes(size), fields=fields))
    with pytest.raises(BadMessage, match=f"feature party 'bank' sent a nonce of {size} bytes, not 32"):
        label_side().challenge(encode_control(hello), "bank")
    challenge = wire_pb2.Header(challenge=wire_pb2.Challenge(nonce=bytes(size), fields=fields))
    with pytest.raises(BadMessage, match=f"the label party sent a nonce of {size} bytes, not 32"):
        FeatureHandshake("bank", SAME).proof(encode_control(challenge), NEW)


def test_a_welcome_names_a_link() -> None:
    feature, label = FeatureHandshake("airport", SAME), label_side()
    label.proven(feature.proof(label.challenge(feature.hello(), "airport"), NEW))
    with pytest.raises(BadMessage, match="a welcome without a link"):
        feature.welcomed(label.welcome(NEW))


def test_an_agreement_that_the_other_side_could_not_read_is_an_error_here() -> None:
    with pytest.raises(ValueError, match="this job's agreement"):
        Agreement({"description": "x" * 5000}, IDS)
    with pytest.raises(ValueError, match="digest of the record ids"):
        Agreement(TERMS, b"")


NO_WORKERS = {
    "more than there can be": (WorkerPlace(0, 1_000_000, b"crew"), "has 1000000 workers, not 1 to 256"),
    "none": (WorkerPlace(0, 0, b"crew"), "has 0 workers, not 1 to 256"),
    "a number that is not there": (WorkerPlace(2, 2, b"crew"), "has 2 workers, and this is number 2, from 0"),
    "no crew": (WorkerPlace(0, 1, b""), "sent a worker without the name of its crew"),
}


@pytest.mark.parametrize("name", NO_WORKERS)
def test_a_worker_that_there_cannot_be_is_refused_by_both_sides(name: str) -> None:
    place, sentence = NO_WORKERS[name]
    feature, label = FeatureHandshake("airport", SAME), label_side()
    proof = feature.proof(label.challenge(feature.hello(), "airport"), replace(NEW, worker=place))
    with pytest.raises(BadMessage, match=f"^feature party 'airport' {sentence}"):
        label.proven(proof)
    with pytest.raises(BadMessage, match=f"^the label party {sentence}"):
        feature.welcomed(label.welcome(replace(HERE, worker=place)))
