//! Frames, chunks and messages: what comes off a stream before anybody knows what it means. The first byte of an input says what
//! the others are taken for.

use crate::mutate::protobuf;
use bytes::Bytes;
use outboard_core::{Error, WeightTail};
use outboard_proto::chunk::{ChunkReader, Direction};
use outboard_proto::frame::FrameReader;
use outboard_proto::limits::{MAX_PEER_MESSAGE, MAX_TENSOR};
use outboard_proto::v1::*;
use outboard_proto::{blobs, device, error, graph, places};
use prost::Message;
use rand::Rng;
use rand::rngs::StdRng;

/// What is decoded, in the order of the first byte.
const KINDS: [fn(&[u8]); 35] = [
    round_trip::<HelloRequest>,
    round_trip::<HelloResponse>,
    round_trip::<DevicesRequest>,
    devices,
    round_trip::<MemoryRequest>,
    round_trip::<MemoryResponse>,
    round_trip::<SupportsRequest>,
    round_trip::<SupportsResponse>,
    round_trip::<TraceRequest>,
    round_trip::<TraceResponse>,
    round_trip::<HaveBlobsRequest>,
    round_trip::<PlaceBlobsRequest>,
    round_trip::<ControlRequest>,
    round_trip::<ControlReply>,
    round_trip::<Command>,
    round_trip::<Reply>,
    round_trip::<BulkUp>,
    round_trip::<BulkDown>,
    round_trip::<PeerUp>,
    round_trip::<PeerDown>,
    round_trip::<ReachRequest>,
    round_trip::<ReachResponse>,
    round_trip::<TrafficRequest>,
    round_trip::<TrafficResponse>,
    errors,
    graphs,
    placements,
    blob_lists,
    frames,
    |bytes| chunks(Direction::Up, bytes),
    |bytes| chunks(Direction::Down, bytes),
    flags,
    round_trip::<PlaceBlobsResponse>,
    round_trip::<ProgressRequest>,
    round_trip::<ProgressResponse>,
];

/// The first byte of inputs that hold this.
pub(crate) fn kind_of(name: &str) -> Option<u8> {
    Some(match name {
        "hello_request" => 0,
        "hello_response" => 1,
        "devices_request" => 2,
        "devices_response" => 3,
        "memory_request" => 4,
        "memory_response" => 5,
        "supports_request" => 6,
        "supports_response" => 7,
        "trace_request" => 8,
        "trace_response" => 9,
        "have_blobs_request" | "have_blobs_response" => 10,
        "place_blobs_request" => 11,
        "place_blobs_response" => 32,
        "progress_request" => 33,
        "progress_response" => 34,
        "peer_reach_request" => 20,
        "peer_reach_response" => 21,
        "peer_traffic_request" => 22,
        "peer_traffic_response" => 23,
        "graph" => 25,
        "places" => 26,
        "blobs_places" | "blobs_question" => 27,
        "peer_welcome" | "peer_refused" => 19,
        "control_attached" | "control_done" | "control_bye" => 13,
        "queue_opened" | "queue_data" | "queue_done" | "queue_failed" => 15,
        "bulk_down_chunk" => 17,
        _ if name.starts_with("control_") => 12,
        _ if name.starts_with("queue_") => 14,
        _ if name.starts_with("bulk_") => 16,
        _ if name.starts_with("peer_") => 18,
        _ if name.starts_with("error_") => 24,
        _ => return None,
    })
}

pub(crate) fn run(input: &[u8]) {
    if let Some((&kind, bytes)) = input.split_first() {
        check(kind, bytes);
    }
}

/// Decodes bytes as one kind of message, whichever `kind` stands for.
pub fn check(kind: u8, bytes: &[u8]) {
    KINDS[usize::from(kind) % KINDS.len()](bytes);
}

pub(crate) fn mutate(input: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let Some((&kind, bytes)) = input.split_first() else { return vec![rng.random()] };
    let kind = if rng.random_range(0..32) == 0 { rng.random() } else { kind };
    [&[kind][..], &protobuf(bytes, rng)].concat()
}

/// What is decoded means the same when it is encoded again.
fn round_trip<M: Message + Default + PartialEq>(bytes: &[u8]) {
    decoded::<M>(bytes);
}

fn decoded<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let again = message.encode_to_vec();
    assert_eq!(again.len(), message.encoded_len());
    // NaN is not equal to itself, so that bytes are compared.
    let twice = M::decode(&again[..]).expect("what was encoded").encode_to_vec();
    assert_eq!(again, twice);
    Some(message)
}

fn devices(bytes: &[u8]) {
    for d in decoded::<DevicesResponse>(bytes).map(|m| m.devices).unwrap_or_default() {
        if let Ok(info) = device::from_wire(&d, "a:1") {
            assert!(info.alignment.is_power_of_two() && info.weight_tail.0 <= WeightTail::MOST);
            assert!(!format!("{}{}{}", info.id, info.description, info.backend).contains(char::is_control));
        }
    }
}

fn errors(bytes: &[u8]) {
    let Some(wire) = decoded::<outboard_proto::v1::Error>(bytes) else { return };
    let text = error::from_wire(wire, "a:1").to_string();
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

fn graphs(bytes: &[u8]) {
    let whole = graph::decode(bytes);
    if let Ok((known, flags)) = graph::decode_known(bytes) {
        assert_eq!(known.tensors().len(), flags.len());
    }
    match whole {
        Ok(whole) => {
            // Both sides mean the same by it.
            let again = graph::encode(&whole).expect("a graph that came can be sent");
            assert_eq!(graph::decode(&again).expect("what was encoded").tensors().len(), whole.tensors().len());
        }
        Err(Error::Request(why)) => assert!(why.len() < 4 * MAX_TENSOR, "{} bytes", why.len()),
        Err(e) => panic!("a wrong graph is not {e:?}"),
    }
}

fn placements(bytes: &[u8]) {
    // No buffer is known; how far one comes without is what is looked at.
    let result = places::decode(bytes, 16, |slice| Err(Error::Request(format!("no buffer {}", slice.buffer))));
    if let Ok(places) = result {
        assert!(places.len() == 16 && places.iter().all(Option::is_none));
    }
}

fn blob_lists(bytes: &[u8]) {
    if let Ok(blobs) = blobs::decode_question(bytes) {
        assert_eq!(blobs::decode_question(&blobs::encode_question(&blobs)).expect("what was encoded"), blobs);
    }
    if let Ok(places) = blobs::decode_places(bytes) {
        assert_eq!(blobs::decode_places(&blobs::encode_places(&places)).expect("what was encoded"), places);
    }
}

/// The same messages, in whatever pieces they come.
fn frames(bytes: &[u8]) {
    let Some((&size, bytes)) = bytes.split_first() else { return };
    let read = |size: usize| {
        let mut reader = FrameReader::new(MAX_PEER_MESSAGE);
        let mut messages = Vec::new();
        for piece in bytes.chunks(size.max(1)) {
            reader.add(piece);
            loop {
                match reader.message() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(_) => return messages,
                }
            }
        }
        messages
    };
    assert_eq!(read(usize::from(size)), read(usize::MAX));
}

fn chunks(direction: Direction, bytes: &[u8]) {
    let Some((&size, bytes)) = bytes.split_first() else { return };
    let read = |size: usize| {
        let mut reader = ChunkReader::new(direction);
        let (mut data, mut messages) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(size.max(1)) {
            let mut piece = Bytes::copy_from_slice(piece);
            loop {
                use outboard_proto::chunk::Piece;
                match reader.next(&mut piece) {
                    Ok(Some(Piece::Data { transfer, data: more })) => {
                        assert!(!more.is_empty());
                        data.extend(more.iter().map(|&byte| (transfer, byte)));
                    }
                    Ok(Some(Piece::Message(message))) => messages.push(message),
                    Ok(None) => break,
                    Err(_) => return (data, messages),
                }
            }
            assert!(piece.is_empty());
        }
        (data, messages)
    };
    assert_eq!(read(usize::from(size)), read(usize::MAX));
}

fn flags(bytes: &[u8]) {
    let Some((&len, bits)) = bytes.split_first() else { return };
    if let Some(flags) = graph::bits_to_flags(bits, len.into()) {
        assert_eq!(flags.len(), usize::from(len));
    }
}
