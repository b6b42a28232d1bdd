// Writes the order for a packet to send: a request or response of an entry, a request once more, or an answer that the NIC gives by itself,
// which is a head alone.
module transmit_order (
    // What the packet is about: an entry, a call whose time is up, else a packet that has come: from a stranger, a Ping, a request that is
    // denied, or one that is being executed.
    input logic of_entry,
    input logic of_call,
    // It asks for packets of a response, from this to the last of so many; or it says how many packets of a request are here without a gap, and
    // which beyond.
    input logic asks,
    input logic [2:0] asked_first,
    input logic [2:0] asked_packets,
    input logic [2:0] count,
    input logic [5:0] beyond,
    // Bytes of the message to which the entry belongs.
    input logic [31:0] entry_message,
    input logic stranger,
    input logic ping,
    input logic deny,
    // By the access list, not for want of a token.
    input logic denied_by_list,
    // Ticks of 64 ns.
    input logic [28:0] now,
    input logic [47:0] packet_remote,
    input logic [15:0] packet_session,
    input logic [31:0] packet_token,
    input logic [31:0] packet_call,
    input nic_pkg::entry_t entry,
    input nic_pkg::call_t call,
    input logic [nic_pkg::BUFFER_BITS-1:0] call_buffer,
    // The connection, and the slot.
    input logic [47:0] remote,
    input logic [15:0] remote_number,
    input logic [31:0] remote_token,
    input logic [2:0] slot,
    input logic [31:0] slot_call,
    output nic_pkg::transmit_t transmit
);
  // How long the host had the call, if that can be said: it repeats when the request came.
  logic [28:0] held;
  logic held_known;
  assign held = now - entry.tag[63:35];
  assign held_known = held[28:16] == '0;

  logic [3:0] send_kind;
  logic [3:0] send_flags;
  logic [7:0] send_slot;
  logic [31:0] send_call;
  logic [15:0] send_number;
  logic [31:0] send_bytes;
  logic [15:0] send_code;
  logic [15:0] send_held;
  always_comb begin
    send_kind = nic_pkg::PACKET_REQUEST;
    send_flags = 4'd0;
    send_slot = {5'd0, slot};
    send_call = slot_call;
    send_number = 16'd0;
    send_bytes = 32'(entry.bytes);
    send_code = entry.code;
    send_held = 16'd0;
    transmit.raw = 1'b0;
    transmit.payload = 1'b1;
    transmit.buffer = entry.buffer;
    transmit.release_buffer = 1'b0;
    transmit.lines = entry.lines;
    transmit.bytes = entry.bytes;
    transmit.sum = entry.sum;
    transmit.head_bytes = 5'd24;
    transmit.remote = remote;
    if (of_entry) begin
      transmit.raw = entry.kind == nic_pkg::ENTRY_RAW;
      if (transmit.raw) transmit.remote = entry.remote;
      transmit.release_buffer = entry.kind != nic_pkg::ENTRY_REQUEST;
      send_bytes = entry_message;
      send_number = entry.remote[47:32];
      if (entry.kind == nic_pkg::ENTRY_REQUEST) begin
        send_call = slot_call + 32'd1;
        // The rest is sent once the server has this.
        if (send_bytes != 32'(entry.bytes)) send_flags = nic_pkg::FLAG_RETURN;
      end else if (entry.kind != nic_pkg::ENTRY_FRAGMENT) begin
        send_kind = nic_pkg::PACKET_RESPONSE;
        send_flags = held_known ? 4'd0 : nic_pkg::FLAG_UNTIMED;
        send_held = held_known ? held[15:0] : 16'hffff;
      end
    end else if (of_call && !asks) begin
      send_flags = nic_pkg::FLAG_RETURN;
      send_bytes = 32'(call.message);
      send_code = call.code;
      transmit.buffer = call_buffer;
      transmit.lines = call.lines;
      transmit.bytes = call.bytes;
      transmit.sum = call.sum;
    end else begin
      // The NIC answers a packet by itself: a head alone.
      transmit.payload = 1'b0;
      transmit.lines = 6'd1;
      transmit.bytes = 16'd0;
      transmit.sum = 16'd0;
      transmit.head_bytes = deny ? 5'd24 : 5'd16;
      send_bytes = 32'd0;
      send_code = 16'd0;
      if (stranger) begin
        send_kind = nic_pkg::PACKET_UNKNOWN;
        transmit.remote = packet_remote;
        send_slot = 8'd0;
        send_call = 32'd0;
      end else if (ping) begin
        send_kind = nic_pkg::PACKET_PONG;
        send_slot = 8'd0;
        send_call = 32'd0;
      end else if (deny) begin
        send_kind = nic_pkg::PACKET_RESPONSE;
        send_flags = nic_pkg::FLAG_UNTIMED;
        send_call = packet_call;
        send_code = denied_by_list ? nic_pkg::STATUS_PERMISSION_DENIED
            : nic_pkg::STATUS_RESOURCE_EXHAUSTED;
        send_held = 16'hffff;
      end else if (asks) begin
        send_kind = nic_pkg::PACKET_REQUEST_FOR_RESPONSE;
        send_flags = 4'(asked_packets - asked_first) - 4'd1;
        send_number = 16'(asked_first);
      end else begin
        send_kind = nic_pkg::PACKET_CREDIT_RETURN;
        send_call = packet_call;
        send_flags = nic_pkg::FLAG_UNTIMED;
        send_number = 16'(count);
        send_bytes = 32'(beyond);
        if (beyond != '0) transmit.head_bytes = 5'd24;
      end
    end
    transmit.head = {send_held, send_code, send_bytes, 16'd0, send_number, send_call,
        stranger ? packet_token : remote_token, stranger ? packet_session : remote_number, send_slot, send_flags, send_kind};
    if (transmit.head_bytes == 5'd16) transmit.head[191:128] = '0;
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, entry, call};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
