//! JSON texts that the mapping's specification and protobuf's conformance tests name, and what has to become of each.

/// Whether the peer reads a text as ours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PeerVerdict {
    Agrees,
    /// It does otherwise, for this reason.
    Differs(&'static str),
}
use PeerVerdict::{Agrees, Differs};

/// A text that is accepted, and as what it is written.
pub(crate) struct AcceptedText(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) PeerVerdict,
);

pub(crate) const EVERYTHING: &[AcceptedText] = &[
    // Names: of the source or in lowerCamelCase; whitespace; no field at all.
    AcceptedText("{}", "{}", Agrees),
    AcceptedText(" {\n\"int32Field\" :\t1 } ", r#"{"int32Field":1}"#, Agrees),
    AcceptedText(r#"{"int32_field":1}"#, r#"{"int32Field":1}"#, Agrees),
    AcceptedText(r#"{"\u0069nt32Field":1}"#, r#"{"int32Field":1}"#, Agrees),
    // Defaults are not written; those with presence are.
    AcceptedText(
        r#"{"int32Field":0,"stringField":"","bools":[],"stringsByString":{}}"#,
        "{}",
        Agrees,
    ),
    AcceptedText(
        r#"{"optionalInt32":0,"optionalString":"","optionalBool":false}"#,
        r#"{"optionalBool":false,"optionalInt32":0,"optionalString":""}"#,
        Agrees,
    ),
    AcceptedText(r#"{"optionalLeaf":{}}"#, r#"{"optionalLeaf":{}}"#, Agrees),
    AcceptedText(r#"{"number":0}"#, r#"{"number":0}"#, Agrees),
    // Null is absence, of every kind of field.
    AcceptedText(
        r#"{"int32Field":null,"stringField":null,"bytesField":null,"color":null,"leaf":null,"bools":null,"stringsByString":null,"optionalInt32":null}"#,
        "{}",
        Agrees,
    ),
    // Integers: numbers and texts, at their bounds, with exponents and zeros behind the point.
    AcceptedText(
        r#"{"int32Field":2147483647,"sint32Field":-2147483648,"uint32Field":4294967295}"#,
        r#"{"int32Field":2147483647,"sint32Field":-2147483648,"uint32Field":4294967295}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"int32Field":"2147483647","sint32Field":"-2147483648"}"#,
        r#"{"int32Field":2147483647,"sint32Field":-2147483648}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"int64Field":9223372036854775807,"sint64Field":-9223372036854775808,"uint64Field":18446744073709551615}"#,
        r#"{"int64Field":"9223372036854775807","sint64Field":"-9223372036854775808","uint64Field":"18446744073709551615"}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"int64Field":"9223372036854775807","fixed64Field":"18446744073709551615"}"#,
        r#"{"int64Field":"9223372036854775807","fixed64Field":"18446744073709551615"}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"int32Field":1e5,"sint32Field":100000.000,"uint32Field":4.294967295e9,"fixed32Field":0.0,"sfixed32Field":-2.147483648e9}"#,
        r#"{"int32Field":100000,"sint32Field":100000,"uint32Field":4294967295,"sfixed32Field":-2147483648}"#,
        Agrees,
    ),
    AcceptedText(r#"{"int32Field":-0,"uint32Field":-0.0}"#, "{}", Agrees),
    AcceptedText(r#"{"int32Field":"\u0031"}"#, r#"{"int32Field":1}"#, Agrees),
    AcceptedText(
        r#"{"int32Field":"1e5","uint64Field":"10.0"}"#,
        r#"{"int32Field":100000,"uint64Field":"10"}"#,
        Differs("it takes exponents only without quotes"),
    ),
    // Floating-point numbers.
    AcceptedText(
        r#"{"floatField":1.175494e-38,"doubleField":2.22507e-308}"#,
        r#"{"floatField":1.175494e-38,"doubleField":2.22507e-308}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"floatField":3.4028234663852886e38,"doubleField":-1.7976931348623157e308}"#,
        r#"{"floatField":3.4028235e38,"doubleField":-1.7976931348623157e308}"#,
        Differs("it takes the largest number for one too large"),
    ),
    AcceptedText(
        r#"{"floatField":1,"doubleField":-2}"#,
        r#"{"floatField":1.0,"doubleField":-2.0}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"floatField":"1.5","doubleField":"1.5e3"}"#,
        r#"{"floatField":1.5,"doubleField":1500.0}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"floatField":"NaN","doubleField":"Infinity","real":"-Infinity"}"#,
        r#"{"floatField":"NaN","doubleField":"Infinity","real":"-Infinity"}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"floatField":"Infinity","doubleField":"NaN","doubles":["-Infinity","NaN",0.1]}"#,
        r#"{"floatField":"Infinity","doubleField":"NaN","doubles":["-Infinity","NaN",0.1]}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"doubleField":-0.0,"floatField":-0.0}"#,
        r#"{"doubleField":-0.0,"floatField":-0.0}"#,
        Differs("its −0 is the default"),
    ),
    AcceptedText(
        r#"{"floatField":0.1,"doubleField":0.1}"#,
        r#"{"floatField":0.1,"doubleField":0.1}"#,
        Agrees,
    ),
    // Texts: escapes, and surrogates that make a character.
    AcceptedText(
        r#"{"stringField":"\u8C37\u6B4C\b\f\n\r\t\"\\\/\uD83D\uDE01"}"#,
        "{\"stringField\":\"谷歌\\b\\f\\n\\r\\t\\\"\\\\/😁\"}",
        Agrees,
    ),
    AcceptedText(
        "{\"stringField\":\"ÿ谷\u{7f}\"}",
        "{\"stringField\":\"ÿ谷\u{7f}\"}",
        Agrees,
    ),
    // Bytes: both alphabets, with padding or without.
    AcceptedText(r#"{"bytesField":"AQI="}"#, r#"{"bytesField":"AQI="}"#, Agrees),
    AcceptedText(r#"{"bytesField":"AQI"}"#, r#"{"bytesField":"AQI="}"#, Agrees),
    AcceptedText(r#"{"bytesField":"-_"}"#, r#"{"bytesField":"+w=="}"#, Agrees),
    AcceptedText(r#"{"bytesField":"-_8="}"#, r#"{"bytesField":"+/8="}"#, Agrees),
    // Enums: names, numbers, numbers without a name, aliases.
    AcceptedText(
        r#"{"color":"COLOR_GREEN","colors":["COLOR_RED",2,"COLOR_INFRARED",77,-1]}"#,
        r#"{"color":"COLOR_GREEN","colors":["COLOR_RED","COLOR_GREEN","COLOR_INFRARED",77,"COLOR_INFRARED"]}"#,
        Agrees,
    ),
    AcceptedText(r#"{"color":0}"#, "{}", Agrees),
    // Lists and maps, with keys of all kinds.
    AcceptedText(
        r#"{"numbers":[1,2,3],"strings":["a","b"],"leaves":[{"value":"1"},{}],"blobs":["AQI=",""]}"#,
        r#"{"numbers":[1,2,3],"strings":["a","b"],"blobs":["AQI=",""],"leaves":[{"value":"1"},{}]}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"stringsByString":{"b":"1","a":"2","":""},"leavesByNumber":{"-5":{"value":1},"2":{}},"doublesByBool":{"true":1.5,"false":0}}"#,
        r#"{"stringsByString":{"":"","a":"2","b":"1"},"leavesByNumber":{"-5":{"value":"1"},"2":{}},"doublesByBool":{"false":0.0,"true":1.5}}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"colorsByNumber":{"18446744073709551615":"COLOR_RED"},"blobsByNumber":{"\u0031":"AQI="}}"#,
        r#"{"colorsByNumber":{"18446744073709551615":"COLOR_RED"},"blobsByNumber":{"1":"AQI="}}"#,
        Agrees,
    ),
    // Oneofs.
    AcceptedText(r#"{"twig":{"value":"3"}}"#, r#"{"twig":{"value":"3"}}"#, Agrees),
    AcceptedText(r#"{"none":{},"off":false}"#, r#"{"none":{},"off":false}"#, Agrees),
    AcceptedText(r#"{"number":null,"text":"x"}"#, r#"{"text":"x"}"#, Agrees),
];

pub(crate) const EVERYTHING_REFUSED: &[(&str, PeerVerdict)] = &[
    ("", Agrees),
    ("null", Agrees),
    ("[]", Agrees),
    ("\"x\"", Agrees),
    ("{", Agrees),
    ("{}}", Agrees),
    (r#"{"int32Field":1,}"#, Agrees),
    (r#"{int32Field:1}"#, Agrees),
    (r#"{'int32Field':1}"#, Agrees),
    (r#"{"int32Field":1 "boolField":true}"#, Agrees),
    (r#"{"unknown":1}"#, Agrees),
    (r#"{"Int32Field":1}"#, Agrees),
    (
        r#"{"int32Field":1,"int32Field":2}"#,
        Differs("it takes the last of both"),
    ),
    (
        r#"{"int32Field":1,"int32_field":2}"#,
        Differs("it takes the last of both"),
    ),
    (r#"{"number":1,"text":"x"}"#, Agrees),
    (
        r#"{"stringsByString":{"a":"1","a":"2"}}"#,
        Differs("it takes the last of both"),
    ),
    (r#"{"int32Field":2147483648}"#, Agrees),
    (r#"{"int32Field":-2147483649}"#, Agrees),
    (r#"{"uint32Field":4294967296}"#, Agrees),
    (r#"{"uint32Field":-1}"#, Agrees),
    (r#"{"int64Field":9223372036854775808}"#, Agrees),
    (
        r#"{"uint64Field":18446744073709551616}"#,
        Differs("its numbers of this size are floating"),
    ),
    (r#"{"uint64Field":-1}"#, Agrees),
    (r#"{"int32Field":0.5}"#, Agrees),
    (r#"{"int32Field":"0.5"}"#, Agrees),
    (r#"{"int32Field":01}"#, Agrees),
    (r#"{"int32Field":+1}"#, Agrees),
    (r#"{"int32Field":"+1"}"#, Differs("it takes a sign in quotes")),
    (
        r#"{"int32Field":"01"}"#,
        Differs("it takes zeros in front in quotes"),
    ),
    (r#"{"int32Field":" 1"}"#, Agrees),
    (r#"{"int32Field":"1 "}"#, Agrees),
    (r#"{"int32Field":""}"#, Agrees),
    (r#"{"int32Field":0x10}"#, Agrees),
    (r#"{"int32Field":true}"#, Agrees),
    (r#"{"int32Field":[1]}"#, Agrees),
    (r#"{"int32Field":{}}"#, Agrees),
    (r#"{"floatField":3.502823e38}"#, Agrees),
    (r#"{"floatField":-3.502823e38}"#, Agrees),
    (
        r#"{"floatField":"3.502823e38"}"#,
        Differs("it takes infinity instead"),
    ),
    (r#"{"doubleField":1.89769e308}"#, Agrees),
    (
        r#"{"doubleField":"1.89769e308"}"#,
        Differs("it takes infinity instead"),
    ),
    (r#"{"doubleField":"nan"}"#, Differs("it takes other spellings")),
    (r#"{"doubleField":"inf"}"#, Differs("it takes other spellings")),
    (r#"{"doubleField":NaN}"#, Agrees),
    (r#"{"doubleField":Infinity}"#, Agrees),
    (r#"{"doubleField":""}"#, Agrees),
    (r#"{"doubleField":true}"#, Agrees),
    (r#"{"optionalBool":1}"#, Agrees),
    (r#"{"optionalBool":"true"}"#, Agrees),
    (r#"{"stringField":1}"#, Agrees),
    (r#"{"stringField":true}"#, Agrees),
    ("{\"stringField\":\"\u{1}\"}", Agrees),
    (r#"{"stringField":"\ud800"}"#, Agrees),
    (r#"{"stringField":"\udc00"}"#, Agrees),
    (r#"{"stringField":"\udc00\ud800"}"#, Agrees),
    (r#"{"stringField":"\u12"}"#, Agrees),
    (r#"{"bytesField":"A"}"#, Agrees),
    (r#"{"bytesField":"AQI=="}"#, Agrees),
    (r#"{"bytesField":"A QI"}"#, Agrees),
    (r#"{"bytesField":1}"#, Agrees),
    (r#"{"color":"GREEN"}"#, Agrees),
    (r#"{"color":"color_green"}"#, Agrees),
    (r#"{"color":"2"}"#, Agrees),
    (r#"{"color":1.5}"#, Agrees),
    (r#"{"color":2147483648}"#, Agrees),
    (r#"{"color":true}"#, Agrees),
    (r#"{"bools":true}"#, Agrees),
    (r#"{"bools":[true,null]}"#, Agrees),
    (r#"{"numbers":[1,"a"]}"#, Agrees),
    (r#"{"leaves":[null]}"#, Agrees),
    (r#"{"leaf":[]}"#, Agrees),
    (r#"{"leaf":"x"}"#, Agrees),
    (r#"{"stringsByString":{"a":null}}"#, Agrees),
    (r#"{"stringsByString":[]}"#, Agrees),
    (r#"{"leavesByNumber":{"a":{}}}"#, Agrees),
    (r#"{"leavesByNumber":{"1.5":{}}}"#, Agrees),
    (r#"{"doublesByBool":{"1":0}}"#, Agrees),
    (r#"{"doublesByBool":{"TRUE":0}}"#, Agrees),
];

pub(crate) const KNOWN: &[AcceptedText] = &[
    AcceptedText(
        r#"{"time":"1970-01-01T00:00:00Z"}"#,
        r#"{"time":"1970-01-01T00:00:00Z"}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"time":"0001-01-01T00:00:00Z","times":["9999-12-31T23:59:59.999999999Z"]}"#,
        r#"{"time":"0001-01-01T00:00:00Z","times":["9999-12-31T23:59:59.999999999Z"]}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"times":["2023-11-14T22:13:20.1Z","2023-11-14T22:13:20.010Z","2023-11-14T22:13:20.000100Z","2023-11-14T22:13:20.0000001Z"]}"#,
        r#"{"times":["2023-11-14T22:13:20.100Z","2023-11-14T22:13:20.010Z","2023-11-14T22:13:20.000100Z","2023-11-14T22:13:20.000000100Z"]}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"times":["1970-01-01T08:00:01+08:00","1969-12-31T16:00:01-08:00","2024-02-29T00:00:00Z"]}"#,
        r#"{"times":["1970-01-01T00:00:01Z","1970-01-01T00:00:01Z","2024-02-29T00:00:00Z"]}"#,
        Agrees,
    ),
    AcceptedText(r#"{"duration":"1.5s"}"#, r#"{"duration":"1.500s"}"#, Agrees),
    AcceptedText(r#"{"duration":"0s"}"#, r#"{"duration":"0s"}"#, Agrees),
    AcceptedText(r#"{"duration":"-0.5s"}"#, r#"{"duration":"-0.500s"}"#, Agrees),
    AcceptedText(
        r#"{"duration":"-1.000000001s"}"#,
        r#"{"duration":"-1.000000001s"}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"duration":"315576000000s"}"#,
        r#"{"duration":"315576000000s"}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"duration":"-315576000000s"}"#,
        r#"{"duration":"-315576000000s"}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"mask":"foo,barBaz.qux"}"#,
        r#"{"mask":"foo,barBaz.qux"}"#,
        Agrees,
    ),
    AcceptedText(r#"{"mask":""}"#, r#"{"mask":""}"#, Agrees),
    AcceptedText(
        r#"{"boolWrapper":false,"int32Wrapper":0,"int64Wrapper":"0","uint32Wrapper":0,"uint64Wrapper":"0","floatWrapper":0,"doubleWrapper":0,"stringWrapper":"","bytesWrapper":""}"#,
        r#"{"boolWrapper":false,"int32Wrapper":0,"int64Wrapper":"0","uint32Wrapper":0,"uint64Wrapper":"0","floatWrapper":0.0,"doubleWrapper":0.0,"stringWrapper":"","bytesWrapper":""}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"boolWrapper":true,"int32Wrapper":"7","int64Wrapper":8,"stringWrapper":"x","bytesWrapper":"AQI="}"#,
        r#"{"boolWrapper":true,"int32Wrapper":7,"int64Wrapper":"8","stringWrapper":"x","bytesWrapper":"AQI="}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"boolWrapper":null,"int32Wrapper":null,"time":null,"duration":null,"mask":null,"structure":null,"listValue":null,"any":null}"#,
        "{}",
        Agrees,
    ),
    // Null is a value of `Value` and of `NullValue`.
    AcceptedText(r#"{"value":null}"#, r#"{"value":null}"#, Agrees),
    AcceptedText(r#"{"nothing":null}"#, r#"{"nothing":null}"#, Agrees),
    AcceptedText(r#"{"anything":null}"#, r#"{"anything":null}"#, Agrees),
    AcceptedText(r#"{"nullValue":null}"#, "{}", Agrees),
    AcceptedText(r#"{"nullValue":"NULL_VALUE"}"#, "{}", Agrees),
    AcceptedText(
        r#"{"values":[null,1,"a",true,[null],{"b":null}]}"#,
        r#"{"values":[null,1.0,"a",true,[null],{"b":null}]}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"valuesByName":{"a":null,"b":[[],{}]}}"#,
        r#"{"valuesByName":{"a":null,"b":[[],{}]}}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"structure":{"a":1,"b":{"c":[1,"2",false]}}}"#,
        r#"{"structure":{"a":1.0,"b":{"c":[1.0,"2",false]}}}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"structure":{},"listValue":[],"empty":{}}"#,
        r#"{"structure":{},"listValue":[],"empty":{}}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"numbersByName":{"a":1,"b":0}}"#,
        r#"{"numbersByName":{"a":1,"b":0}}"#,
        Agrees,
    ),
    // Any: of messages with and without a form of their own, in any order, within each other.
    AcceptedText(
        r#"{"any":{"@type":"type.googleapis.com/golden.everything.Everything","int32Field":1}}"#,
        r#"{"any":{"@type":"type.googleapis.com/golden.everything.Everything","int32Field":1}}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"any":{"int32Field":1,"@type":"type.googleapis.com/golden.everything.Everything"}}"#,
        r#"{"any":{"@type":"type.googleapis.com/golden.everything.Everything","int32Field":1}}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1s"}}"#,
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1s"}}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"any":{"value":"1s","@type":"x.example.org/types/google.protobuf.Duration"}}"#,
        r#"{"any":{"@type":"x.example.org/types/google.protobuf.Duration","value":"1s"}}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Value","value":{"a":[1]}}}"#,
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Value","value":{"a":[1.0]}}}"#,
        Agrees,
    ),
    AcceptedText(
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Empty"}}"#,
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Empty"}}"#,
        Differs("it wants a `value`"),
    ),
    AcceptedText(
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Empty","value":{}}}"#,
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Empty"}}"#,
        Differs("it writes a `value`"),
    ),
    AcceptedText(
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Any","value":{"@type":"type.googleapis.com/google.protobuf.Int32Value","value":7}}}"#,
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Any","value":{"@type":"type.googleapis.com/google.protobuf.Int32Value","value":7}}}"#,
        Agrees,
    ),
    AcceptedText(r#"{"any":{}}"#, r#"{"any":{}}"#, Differs("it wants a type")),
];

pub(crate) const KNOWN_REFUSED: &[(&str, PeerVerdict)] = &[
    (r#"{"time":1}"#, Agrees),
    (r#"{"time":"0000-01-01T00:00:00Z"}"#, Agrees),
    (r#"{"time":"10000-01-01T00:00:00Z"}"#, Agrees),
    (r#"{"time":"2023-02-29T00:00:00Z"}"#, Agrees),
    (r#"{"time":"2023-13-01T00:00:00Z"}"#, Agrees),
    (r#"{"time":"2023-00-01T00:00:00Z"}"#, Agrees),
    (r#"{"time":"2023-01-01T24:00:00Z"}"#, Agrees),
    (r#"{"time":"2023-01-01T00:60:00Z"}"#, Agrees),
    (r#"{"time":"2023-01-01T00:00:00"}"#, Agrees),
    (r#"{"time":"2023-01-01t00:00:00Z"}"#, Agrees),
    (r#"{"time":"2023-01-01T00:00:00z"}"#, Agrees),
    (r#"{"time":"2023-01-01 00:00:00Z"}"#, Agrees),
    (r#"{"time":"2023-1-1T00:00:00Z"}"#, Agrees),
    (r#"{"time":"2023-01-01T00:00:00.Z"}"#, Agrees),
    (
        r#"{"time":"2023-01-01T00:00:00.0000000001Z"}"#,
        Differs("it drops what is less than a nanosecond"),
    ),
    (r#"{"time":"0001-01-01T00:00:00+01:00"}"#, Agrees),
    (r#"{"time":"2023-01-01T00:00:00+0100"}"#, Agrees),
    (r#"{"duration":1}"#, Agrees),
    (r#"{"duration":"1"}"#, Agrees),
    (r#"{"duration":"s"}"#, Agrees),
    (r#"{"duration":"1.s"}"#, Agrees),
    (r#"{"duration":".5s"}"#, Agrees),
    (r#"{"duration":"+1s"}"#, Agrees),
    (r#"{"duration":"1m"}"#, Agrees),
    (r#"{"duration":"--1s"}"#, Agrees),
    (r#"{"duration":"315576000001s"}"#, Agrees),
    (r#"{"duration":"-315576000001s"}"#, Agrees),
    (
        r#"{"duration":"1.0000000001s"}"#,
        Differs("it drops what is less than a nanosecond"),
    ),
    (r#"{"mask":"foo_bar"}"#, Agrees),
    (r#"{"mask":["foo"]}"#, Agrees),
    (r#"{"structure":[]}"#, Agrees),
    (r#"{"listValue":{}}"#, Agrees),
    (r#"{"empty":{"a":1}}"#, Agrees),
    (r#"{"boolWrapper":"true"}"#, Agrees),
    (r#"{"int32Wrapper":1.5}"#, Agrees),
    (r#"{"int32Wrapper":{"value":1}}"#, Agrees),
    (r#"{"numbersByName":{"a":null}}"#, Agrees),
    (r#"{"times":[null]}"#, Agrees),
    (r#"{"nothing":null,"text":"x"}"#, Agrees),
    (r#"{"any":{"int32Field":1}}"#, Agrees),
    (r#"{"any":{"@type":1}}"#, Agrees),
    (r#"{"any":{"@type":"golden.everything.Everything"}}"#, Agrees),
    (
        r#"{"any":{"@type":"type.googleapis.com/golden.everything.Nothing"}}"#,
        Agrees,
    ),
    (
        r#"{"any":{"@type":"type.googleapis.com/golden.everything.Everything","unknown":1}}"#,
        Agrees,
    ),
    (
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Duration"}}"#,
        Agrees,
    ),
    (
        r#"{"any":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1s","a":1}}"#,
        Agrees,
    ),
];
