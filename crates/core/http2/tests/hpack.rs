//! RFC 7541 by its examples, by properties, and beside another implementation.

use fluke_hpack::{Decoder, Encoder};
use proptest::collection::vec;
use proptest::prelude::*;
use provost_http2::hpack::{
    DecodedBlock, ENCODER_TABLE_BYTES_MAX, HpackDecoder, HpackEncoder, HpackError, STATIC_ENTRIES,
    huffman_decode, huffman_encode, static_field,
};
use provost_http2::{FieldIndexing, FieldList};

type PlainFields = Vec<(Vec<u8>, Vec<u8>)>;

const LIST_BYTES_MAX: usize = 1 << 20;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let number = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(number).collect()
}

fn plain(fields: &FieldList) -> PlainFields {
    fields
        .iter()
        .map(|field| (field.name.to_vec(), field.value.to_vec()))
        .collect()
}

fn decode(decoder: &mut HpackDecoder, block: &[u8]) -> Result<PlainFields, HpackError> {
    decoder.fragment(block)?;
    assert_eq!(decoder.end()?, DecodedBlock::Whole);
    Ok(plain(decoder.fields()))
}

fn fields(pairs: &[(&str, &str)]) -> PlainFields {
    pairs
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

/// RFC 7541, appendix C.2: the four representations.
#[test]
fn rfc7541_c2_representations() {
    let decoded = |hex| decode(&mut HpackDecoder::new(LIST_BYTES_MAX), &bytes(hex)).unwrap();
    let with_indexing = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    assert_eq!(decoded(with_indexing), fields(&[("custom-key", "custom-header")]));
    assert_eq!(
        decoded("040c 2f73 616d 706c 652f 7061 7468"),
        fields(&[(":path", "/sample/path")])
    );
    assert_eq!(
        decoded("1008 7061 7373 776f 7264 0673 6563 7265 74"),
        fields(&[("password", "secret")])
    );
    assert_eq!(decoded("82"), fields(&[(":method", "GET")]));
}

/// RFC 7541, appendix C.4: three requests on one connection, with Huffman coding.
#[test]
fn rfc7541_c4_requests() {
    let get = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
    ];
    let blocks = [
        ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", get.to_vec()),
        (
            "8286 84be 5886 a8eb 1064 9cbf",
            [&get[..], &[("cache-control", "no-cache")]].concat(),
        ),
        (
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
            vec![
                (":method", "GET"),
                (":scheme", "https"),
                (":path", "/index.html"),
                (":authority", "www.example.com"),
                ("custom-key", "custom-value"),
            ],
        ),
    ];
    let (mut decoder, mut encoder) = (HpackDecoder::new(LIST_BYTES_MAX), HpackEncoder::new());
    for (hex, pairs) in blocks {
        assert_eq!(decode(&mut decoder, &bytes(hex)).unwrap(), fields(&pairs));
        let mut block = Vec::new();
        encoder.encode(&pairs.iter().copied().collect(), &mut block);
        assert_eq!(block, bytes(hex), "the encoder writes what the RFC prints");
    }
}

/// RFC 7541, appendix C.6: responses with a table of 256 bytes, where entries are evicted.
#[test]
fn rfc7541_c6_responses_with_eviction() {
    let date = "Mon, 21 Oct 2013 20:13:21 GMT";
    let blocks = [
        (
            "3fe1 01 48 8264 0258 85ae c377 1a4b 6196 d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff 6e91 9d29 ad17 \
             1863 c78f 0b97 c8e9 ae82 ae43 d3",
            "302",
        ),
        ("4883 640e ffc1 c0bf", "307"),
    ];
    let mut decoder = HpackDecoder::new(LIST_BYTES_MAX);
    for (hex, status) in blocks {
        let expected = [
            (":status", status),
            ("cache-control", "private"),
            ("date", date),
            ("location", "https://www.example.com"),
        ];
        assert_eq!(decode(&mut decoder, &bytes(hex)).unwrap(), fields(&expected));
    }
    // The oldest entry, ":status: 302", was evicted: four entries are left.
    assert!(decode(&mut decoder, &[0xc1]).is_ok());
    assert_eq!(decode(&mut decoder, &[0xc2]), Err(HpackError::Index));
}

/// RFC 7541, section 2.3.3: an index beyond both tables, and section 6.1: index 0.
#[test]
fn rfc7541_2_3_3_indexes_beyond_the_tables_are_refused() {
    for block in [
        &[0x80][..],
        &[0xbe],
        &[0x7e, 0x01, b'a'],
        &[0xff, 0x80, 0x80, 0x01],
    ] {
        let decoded = decode(&mut HpackDecoder::new(LIST_BYTES_MAX), block);
        assert_eq!(decoded, Err(HpackError::Index), "{block:x?}");
    }
}

/// RFC 7541, section 4.2: a change of size stands before all fields of a block.
#[test]
fn rfc7541_4_2_late_size_updates_are_refused() {
    let decoded = decode(&mut HpackDecoder::new(LIST_BYTES_MAX), &[0x82, 0x20]);
    assert_eq!(decoded, Err(HpackError::LateSizeUpdate));
}

/// RFC 7541, section 6.3: the size is no larger than what the decoder's end allows.
#[test]
fn rfc7541_6_3_sizes_over_the_setting_are_refused() {
    let mut decoder = HpackDecoder::new(LIST_BYTES_MAX);
    let update = bytes("3fe2 1f 82");
    assert_eq!(decode(&mut decoder.clone(), &update), Err(HpackError::TableSize));
    decoder.announce_table_bytes(4_097);
    assert!(decode(&mut decoder, &update).is_ok());
}

/// RFC 7541, section 4.2, and RFC 9113, section 4.3.1: after a reduction was acknowledged, the next block begins with it.
#[test]
fn rfc9113_4_3_1_a_reduction_must_be_told() {
    let mut decoder = HpackDecoder::new(LIST_BYTES_MAX);
    decoder.acknowledge_table_bytes(100);
    assert_eq!(
        decode(&mut decoder.clone(), &[0x82]),
        Err(HpackError::NoSizeUpdate)
    );
    assert_eq!(
        decode(&mut decoder.clone(), &bytes("3f46 82")),
        Err(HpackError::TableSize)
    );
    assert!(decode(&mut decoder.clone(), &bytes("3f45 82")).is_ok());
    assert!(decode(&mut decoder, &bytes("20 82")).is_ok());
}

/// RFC 7541, section 4.2: of several changes between two blocks, the smallest and the last are told.
#[test]
fn rfc7541_4_2_the_smallest_size_is_told() {
    let (mut encoder, mut decoder) = (HpackEncoder::new(), HpackDecoder::new(LIST_BYTES_MAX));
    let list: FieldList = [("x-a", "b")].into_iter().collect();
    let mut block = Vec::new();
    encoder.encode(&list, &mut block);
    decode(&mut decoder, &block).unwrap();
    for bytes in [1_000, 0, 200] {
        encoder.set_peer_table_bytes(bytes);
    }
    decoder.acknowledge_table_bytes(0);
    decoder.acknowledge_table_bytes(200);
    block.clear();
    encoder.encode(&list, &mut block);
    assert_eq!(block[..3], [0x20, 0x3f, 0xa9]);
    assert_eq!(decode(&mut decoder, &block).unwrap(), plain(&list));
}

/// RFC 7541, section 4.4: an entry larger than the table empties it, and that is no error.
#[test]
fn rfc7541_4_4_an_entry_larger_than_the_table_empties_it() {
    let mut decoder = HpackDecoder::new(LIST_BYTES_MAX);
    assert!(decode(&mut decoder, b"\x40\x01a\x01b").is_ok());
    assert!(decode(&mut decoder, &[0xbe]).is_ok());
    let large = [&b"\x40\x01a\x7f\x81\x1f"[..], &[b'x'; 4_096]].concat();
    assert!(decode(&mut decoder, &large).is_ok());
    assert_eq!(decode(&mut decoder, &[0xbe]), Err(HpackError::Index));
}

/// RFC 7541, section 7.1.3: a field that must never be indexed is written so, and read so.
#[test]
fn rfc7541_7_1_3_secrets_enter_no_table() {
    let secrets: [(&[u8], &[u8], FieldIndexing); 5] = [
        (b"x-key", b"secret", FieldIndexing::Never),
        (b"authorization", b"secret", FieldIndexing::Never),
        (b"authorization", b"secret", FieldIndexing::Automatic),
        (b"proxy-authorization", b"secret", FieldIndexing::Automatic),
        (b"cookie", b"id=short", FieldIndexing::Automatic),
    ];
    for (name, value, indexing) in secrets {
        let (mut encoder, mut decoder) = (HpackEncoder::new(), HpackDecoder::new(LIST_BYTES_MAX));
        let mut list = FieldList::new();
        list.push_field(name, value, indexing);
        let mut lengths = Vec::new();
        for _ in 0..2 {
            let mut block = Vec::new();
            encoder.encode(&list, &mut block);
            assert_eq!(block[0] & 0xf0, 0x10);
            decode(&mut decoder, &block).unwrap();
            assert_eq!(decoder.fields().field(0).unwrap().indexing, FieldIndexing::Never);
            lengths.push(block.len());
        }
        assert_eq!(lengths[0], lengths[1]);
    }
}

/// RFC 7541, appendix A, beside another implementation's table.
#[test]
fn rfc7541_a_static_table_is_that_of_others() {
    let mut other = Decoder::new();
    for index in 1..=STATIC_ENTRIES {
        let theirs = other.decode(&[0x80 | index as u8]).unwrap();
        let (name, value) = static_field(index).unwrap();
        assert_eq!(theirs, [(name.to_vec(), value.to_vec())]);
    }
}

/// A list over the limit is cut, and the tables stay in step (RFC 9113, section 10.5.1).
#[test]
fn a_list_over_the_limit_leaves_the_tables_in_step() {
    let (mut encoder, mut decoder) = (HpackEncoder::new(), HpackDecoder::new(300));
    let long: FieldList = (0..20)
        .map(|number| (format!("x-{number}"), "a value of some length"))
        .collect();
    let mut block = Vec::new();
    encoder.encode(&long, &mut block);
    for piece in block.chunks(7) {
        decoder.fragment(piece).unwrap();
    }
    assert_eq!(decoder.end(), Ok(DecodedBlock::OverLimit));
    assert!(decoder.fields().list_bytes() <= 300);
    let short: FieldList = [
        ("x-19", "a value of some length"),
        ("x-7", "a value of some length"),
    ]
    .into_iter()
    .collect();
    block.clear();
    encoder.encode(&short, &mut block);
    assert_eq!(block.len(), 2, "both fields are in the table");
    assert_eq!(decode(&mut decoder, &block).unwrap(), plain(&short));
}

/// A bomb: a large entry, named again and again. The list ends at its limit, and costs no memory.
#[test]
fn a_bomb_of_indexes_is_counted_and_not_stored() {
    let mut decoder = HpackDecoder::new(16 << 10);
    let value = vec![b'x'; 4_000];
    let entry = [&b"\x40\x01a\x7f\xa1\x1e"[..], &value].concat();
    decoder.fragment(&entry).unwrap();
    decoder.fragment(&[0xbe; 60]).unwrap();
    assert_eq!(decoder.end(), Ok(DecodedBlock::OverLimit));
    assert!(decoder.fields().list_bytes() <= 16 << 10);
}

/// The same thousands of times, whether as whole fields or as names of others, which are copied: the block is not decoded to its end.
#[test]
fn a_bomb_without_end_is_refused_before_it_is_decoded() {
    let name = vec![b'x'; 4_000];
    let entry = [&b"\x40\x7f\xa1\x1e"[..], &name, b"\x01a"].concat();
    // A field of the table, its name without an insertion, and with one.
    for again in [&b"\xbe"[..], b"\x0f\x2f\0", b"\x7e\0"] {
        let mut decoder = HpackDecoder::new(16 << 10);
        decoder.fragment(&entry).unwrap();
        let thousands = again.repeat(10_000);
        let fields = thousands.chunks(again.len());
        let decoded = fields
            .map(|field| decoder.fragment(field))
            .take_while(Result::is_ok);
        let decoded = decoded.count();
        assert!(decoded < 100, "{decoded} of {again:?}");
        assert_eq!(decoder.fragment(again), Err(HpackError::TooLong));
    }
}

/// A block that goes on for ever ends the connection, whether its strings end or not.
#[test]
fn a_block_without_end_is_refused() {
    let mut decoder = HpackDecoder::new(1_000);
    let endless = (0..)
        .map(|_| decoder.fragment(&[0x82; 1_000]))
        .find(Result::is_err);
    assert_eq!(endless, Some(Err(HpackError::TooLong)));
    let mut decoder = HpackDecoder::new(1_000);
    decoder.fragment(b"\x40\x01a\x7f\xff\xff\xff\x07").unwrap();
    let endless = (0..)
        .map(|_| decoder.fragment(&[b'x'; 1_000]))
        .find(Result::is_err);
    assert_eq!(endless, Some(Err(HpackError::TooLong)));
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let known = (1..=STATIC_ENTRIES).prop_map(|index| static_field(index).unwrap().0.to_vec());
    let own = "[a-d][a-z-]{0,3}".prop_map(String::into_bytes);
    prop_oneof![known, own]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let known = (1..=STATIC_ENTRIES).prop_map(|index| static_field(index).unwrap().1.to_vec());
    prop_oneof![known, vec(b'a'..=b'c', 0..4), vec(any::<u8>(), 0..200)]
}

fn lists() -> impl Strategy<Value = Vec<(PlainFields, Option<u32>)>> {
    let size = prop_oneof![3 => Just(None), 1 => (0_u32..5_000).prop_map(Some)];
    vec((vec((name(), value()), 1..12), size), 1..20)
}

fn list(fields: &PlainFields) -> FieldList {
    fields.iter().map(|(name, value)| (name, value)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What the encoder writes, this decoder and another one read, through changes of the table's size.
    #[test]
    fn encoded_lists_are_read_by_others(lists in lists(), cut in 1_usize..40) {
        let (mut encoder, mut decoder) = (HpackEncoder::new(), HpackDecoder::new(LIST_BYTES_MAX));
        let mut other = Decoder::new();
        for (fields, size) in &lists {
            if let Some(size) = size {
                encoder.set_peer_table_bytes(*size);
                decoder.acknowledge_table_bytes(*size);
                other.set_max_allowed_table_size(ENCODER_TABLE_BYTES_MAX as usize);
            }
            let mut block = Vec::new();
            encoder.encode(&list(fields), &mut block);
            for piece in block.chunks(cut) {
                decoder.fragment(piece).unwrap();
            }
            prop_assert_eq!(decoder.end(), Ok(DecodedBlock::Whole));
            prop_assert_eq!(&plain(decoder.fields()), fields);
            prop_assert_eq!(&other.decode(&block).unwrap(), fields);
        }
    }

    /// What another encoder writes, this decoder reads.
    #[test]
    fn lists_that_others_encoded_are_read(lists in lists()) {
        let (mut other, mut decoder) = (Encoder::new(), HpackDecoder::new(LIST_BYTES_MAX));
        for (fields, _) in &lists {
            let block = other.encode(fields.iter().map(|(name, value)| (&name[..], &value[..])));
            prop_assert_eq!(&decode(&mut decoder, &block).unwrap(), fields);
        }
    }

    /// Of any bytes, both decoders make the same fields, or both make none.
    #[test]
    fn any_bytes_are_read_as_others_read_them(
        blocks in vec(vec(prop_oneof![any::<u8>(), 0_u8..8, 0x3e_u8..0x48, 0x80_u8..0xc8], 0..40), 1..6)
    ) {
        let (mut other, mut decoder) = (Decoder::new(), HpackDecoder::new(LIST_BYTES_MAX));
        other.set_max_allowed_table_size(4_096);
        for block in &blocks {
            let ours = decode(&mut decoder, block);
            // These it lets through, or panics of.
            if let Err(
                HpackError::LateSizeUpdate
                | HpackError::Integer
                | HpackError::Huffman(_)
                | HpackError::TableSize
                | HpackError::Truncated,
            ) = ours
            {
                break;
            }
            match (other.decode(block), ours) {
                (Ok(theirs), Ok(ours)) => prop_assert_eq!(theirs, ours),
                (Err(_), Err(_)) => break,
                // It refuses a block of nothing but a change of size.
                (Err(theirs), Ok(_)) if format!("{theirs:?}").contains("SizeUpdateAtEnd") => break,
                (theirs, ours) => prop_assert!(false, "{theirs:?} and {ours:?} of {block:x?}"),
            }
        }
    }

    /// Any text is what it was after it was coded.
    #[test]
    fn coded_texts_are_read_as_written(text in vec(any::<u8>(), 0..300)) {
        let (mut coded, mut decoded) = (Vec::new(), Vec::new());
        huffman_encode(&text, &mut coded);
        huffman_decode(&coded, &mut decoded).unwrap();
        prop_assert_eq!(decoded, text);
    }

    /// Any bytes that are a coded text are the only ones that are.
    #[test]
    fn a_text_has_one_code(coded in vec(any::<u8>(), 0..40)) {
        let (mut text, mut again) = (Vec::new(), Vec::new());
        if huffman_decode(&coded, &mut text).is_ok() {
            huffman_encode(&text, &mut again);
            prop_assert_eq!(again, coded);
        }
    }
}
