// What several modules of the NIC agree on: kinds of packets and entries, and where the fields of a connection's line are.
// docs/nic.md has the formats in tables.
//
// The width of a line is a parameter of the whole NIC, since structures here have it: NIC_LINE_BYTES_LOG2, which tools define.
`ifndef NIC_LINE_BYTES_LOG2
`define NIC_LINE_BYTES_LOG2 6
`endif
/* verilator lint_off UNUSEDPARAM */
package nic_pkg;
  // A line is what host memory, rings and the wire move at once: 64 bytes, or 128 where the NIC is built with 7.
  localparam int LINE_BYTES_LOG2 = `NIC_LINE_BYTES_LOG2;
  localparam int LINE_BYTES = 1 << LINE_BYTES_LOG2;
  localparam int LINE_BITS = 8 * LINE_BYTES;
  // A data packet and an entry both begin with this many bytes before the payload.
  localparam int HEAD_BITS = 192;

  // Kinds of packets (docs/datagram.md).
  localparam logic [3:0] PACKET_REQUEST = 4'd1;
  localparam logic [3:0] PACKET_CREDIT_RETURN = 4'd2;
  localparam logic [3:0] PACKET_REQUEST_FOR_RESPONSE = 4'd3;
  localparam logic [3:0] PACKET_RESPONSE = 4'd4;
  localparam logic [3:0] PACKET_UNKNOWN = 4'd12;
  localparam logic [3:0] PACKET_PING = 4'd13;
  localparam logic [3:0] PACKET_PONG = 4'd14;
  localparam logic [3:0] FLAG_RETURN = 4'd1;
  localparam logic [3:0] FLAG_UNTIMED = 4'd4;

  // Kinds of entries, in both rings.
  localparam logic [3:0] ENTRY_REQUEST = 4'd1;
  localparam logic [3:0] ENTRY_RESPONSE = 4'd2;
  localparam logic [3:0] ENTRY_RAW = 4'd3;
  localparam logic [3:0] ENTRY_REPEAT = 4'd4;
  localparam logic [3:0] ENTRY_ERROR = 4'd5;
  // A further packet of a request whose first the NIC has sent.
  localparam logic [3:0] ENTRY_FRAGMENT = 4'd6;
  // A kind that no host writes: the poller puts it in place of an entry that makes no sense.
  localparam logic [3:0] ENTRY_BAD = 4'd15;

  // Why a call or an entry failed, in the code of an ENTRY_ERROR.
  localparam logic [15:0] ERROR_DESCRIPTOR = 16'd1;
  localparam logic [15:0] ERROR_CONNECTION = 16'd2;
  localparam logic [15:0] ERROR_BUSY = 16'd3;
  localparam logic [15:0] ERROR_STALE = 16'd4;
  localparam logic [15:0] ERROR_TIMEOUT = 16'd5;
  localparam logic [15:0] ERROR_TOO_LARGE = 16'd6;

  // Status codes with which the NIC itself answers a request.
  localparam logic [15:0] STATUS_PERMISSION_DENIED = 16'd7;
  localparam logic [15:0] STATUS_RESOURCE_EXHAUSTED = 16'd8;

  // Where a slot's call stands. A server's slot and a client's use what they need.
  localparam logic [2:0] PHASE_IDLE = 3'd0;
  localparam logic [2:0] PHASE_EXECUTING = 3'd1;
  localparam logic [2:0] PHASE_RESPONDED = 3'd2;
  localparam logic [2:0] PHASE_DENIED = 3'd3;
  localparam logic [2:0] PHASE_LIMITED = 3'd4;
  localparam logic [2:0] PHASE_OUT = 3'd5;
  // A server's slot has some packets of a request, the first among them.
  localparam logic [2:0] PHASE_RECEIVING = 3'd6;

  // What a policy says of a request.
  localparam logic [1:0] VERDICT_PASS = 2'd0;
  localparam logic [1:0] VERDICT_DENIED = 2'd1;
  localparam logic [1:0] VERDICT_LIMITED = 2'd2;

  // A connection's state is the lowest bits of its line, whose other bits are zero. Its fields, by their lowest bit:
  localparam int CONNECTION_BITS = 512;
  localparam int CONNECTION_VALID = 0;
  localparam int CONNECTION_SERVER = 1;
  localparam int CONNECTION_SLOTS = 4;            // 4 bits
  localparam int CONNECTION_BALANCE = 8;          // 2 bits
  localparam int CONNECTION_BUCKET = 12;          // 3 bits
  localparam int CONNECTION_FLOW = 16;            // 4 bits: the first flow
  localparam int CONNECTION_FLOWS = 20;           // 4 bits: how many, less one; a power of two less one
  // Of a server's slot that receives a request: packets 4 and 5 are here. (1 to 3 are beside its flow.)
  localparam int CONNECTION_FOURTH = 24;          // 8 times 1 bit
  localparam int CONNECTION_FIFTH = 504;          // 8 times 1 bit
  localparam int CONNECTION_LOCAL_TOKEN = 32;     // 32 bits
  localparam int CONNECTION_REMOTE_TOKEN = 64;    // 32 bits
  localparam int CONNECTION_REMOTE_NUMBER = 96;   // 16 bits
  localparam int CONNECTION_PAYLOAD_MAX = 112;    // 16 bits
  localparam int CONNECTION_REMOTE = 128;         // 48 bits: an address of the wire
  localparam int CONNECTION_CALLS = 176;          // 8 times 32 bits
  localparam int CONNECTION_PHASES = 432;         // 8 times 3 bits
  localparam int CONNECTION_BUFFERS = 456;        // 8 times 6 bits: a client's buffer; of a server, the flow and 3 bits of packets
  localparam int SLOTS = 8;

  // How requests are spread over a server's flows.
  localparam logic [1:0] BALANCE_STATIC = 2'd0;
  localparam logic [1:0] BALANCE_ROUND_ROBIN = 2'd1;
  localparam logic [1:0] BALANCE_KEY = 2'd2;
  localparam logic [1:0] BALANCE_LEAST_LOADED = 2'd3;

  // Commands of the CONNECTION register.
  localparam logic [1:0] COMMAND_LOAD = 2'd1;
  localparam logic [1:0] COMMAND_CLOSE = 2'd2;

  // Packets of a message at most. Those of messages of several lie in areas of host memory, eight for each
  // connection: of requests the slot's, of responses the one that the host has named.
  localparam int MESSAGE_PACKETS = 7;
  localparam int MESSAGE_BYTES_BITS = 19;

  // How far the response to a call has come, once its first packet is here: the bytes of all, which packets are here, and how many there are.
  typedef struct packed {
    logic [MESSAGE_BYTES_BITS-1:0] bytes;
    logic [6:0] here;
    logic [2:0] packets;
  } progress_t;

  // Message buffers: one holds an entry of a transmit ring while the NIC needs it.
  localparam int BUFFERS = 64;
  localparam int BUFFER_BITS = 6;
  localparam int BUFFER_LINES = 32;
  localparam int BUFFER_LINE_BITS = 5;

  // An entry that the poller took from a transmit ring. Its lines are in a message buffer.
  typedef struct packed {
    logic [3:0] kind;
    logic [7:0] flow;
    logic [BUFFER_BITS-1:0] buffer;
    logic [BUFFER_LINE_BITS:0] lines;
    logic [15:0] connection;
    logic [15:0] code;
    logic [15:0] bytes;
    logic [63:0] tag;
    // Of a raw entry, an address; else the number of the packet in its message (16 bits), and the message's bytes (32).
    logic [47:0] remote;
    // Of a request: which area of the connection the response goes to, if it has several packets.
    logic [2:0] area;
    logic [15:0] sum;
  } entry_t;

  // A packet that came whole and intact. Its first line is here, the others are in the receive buffer.
  typedef struct packed {
    logic [47:0] remote;
    logic [BUFFER_LINE_BITS:0] lines;
    logic [15:0] bytes;
    logic [LINE_BITS-1:0] first;
  } packet_t;

  // A packet to send.
  typedef struct packed {
    // The packet is the lines after the first of the buffer, as they are, but for the check.
    logic raw;
    // There is payload in the buffer.
    logic payload;
    logic [BUFFER_BITS-1:0] buffer;
    // The buffer is free once the packet is sent; else the call table is told.
    logic release_buffer;
    logic [BUFFER_LINE_BITS:0] lines;
    logic [15:0] bytes;
    logic [15:0] sum;
    logic [4:0] head_bytes;
    logic [HEAD_BITS-1:0] head;
    logic [47:0] remote;
  } transmit_t;

  // What to do with a packet that has come, or what to write to a receive ring without one.
  typedef struct packed {
    // Write a slot; else only take the packet's other lines out of the receive buffer.
    logic deliver;
    // The packet's lines follow the header line, all of them; else its payload stays where it is in the packet.
    logic raw;
    // Write the payload.
    logic payload;
    // The packet, as it is, goes to lines from this address on, before a slot is written.
    logic store;
    logic [31:0] store_address;
    logic [7:0] flow;
    // Lines of the packet, of which the first is here.
    logic [BUFFER_LINE_BITS:0] lines;
    logic [HEAD_BITS-1:0] head;
    logic [LINE_BITS-1:0] first;
  } receive_t;

  // What the call table knows of a call on its way.
  typedef struct packed {
    logic [7:0] flow;
    logic [15:0] connection;
    logic [2:0] slot;
    logic [31:0] call;
    logic [63:0] tag;
    logic [15:0] code;
    logic [15:0] bytes;
    // Bytes of the whole message, of which the buffer has the first packet.
    logic [MESSAGE_BYTES_BITS-1:0] message;
    logic [2:0] area;
    logic [15:0] sum;
    logic [BUFFER_LINE_BITS:0] lines;
    logic [31:0] began;
  } call_t;
endpackage
/* verilator lint_on UNUSEDPARAM */
