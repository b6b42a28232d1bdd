// Writes the order for what the host gets of an event: a slot of a receive ring, lines in an area of a message, both, or neither.
module receive_order (
    // The event is a packet, which leaves the receive buffer in any case.
    input logic of_packet,
    // What the host gets, one of these at most: a request; that packets of a response, or of a request, are wanted; a response; a packet of
    // session management; an entry that was refused; a call that has failed.
    input logic deliver_request,
    input logic deliver_repeat,
    input logic deliver_wanted,
    input logic deliver_response,
    input logic deliver_managed,
    input logic refuse_entry,
    input logic give_up,
    // The response can be taken. The packet asks for packets of a response. The call was as its connection says.
    input logic response_fits,
    input logic response_wanted,
    input logic call_current,
    // The message has several packets, so many; this one is stored, here.
    input logic several,
    input logic [2:0] several_packets,
    input logic store,
    input logic [31:0] store_address,
    // Ticks of 64 ns.
    input logic [28:0] now,
    input logic [7:0] control_flow,
    input logic [7:0] request_flow,
    input nic_pkg::packet_t packet,
    input nic_pkg::entry_t entry,
    input logic [15:0] entry_error,
    input nic_pkg::call_t call,
    input logic [2:0] slot,
    input logic [31:0] slot_call,
    output nic_pkg::receive_t receive
);
  logic [3:0] host_kind;
  logic [15:0] host_bytes;
  logic [15:0] host_connection;
  logic [15:0] host_code;
  logic [63:0] host_tag;
  logic [47:0] host_remote;
  // Of a message of several packets: how many, and which area has them.
  logic [5:0] host_place;
  always_comb begin
    receive.deliver = 1'b1;
    receive.raw = 1'b0;
    receive.payload = 1'b0;
    receive.store = store;
    receive.store_address = store_address;
    receive.flow = request_flow;
    receive.lines = of_packet ? packet.lines : 6'd0;
    receive.first = packet.first;
    host_kind = nic_pkg::ENTRY_ERROR;
    host_bytes = '0;
    host_connection = packet.first[31:16];
    host_code = packet.first[175:160];
    host_tag = {now, slot, packet.first[95:64]};
    host_remote = packet.remote;
    host_place = '0;
    if (deliver_request) begin
      host_kind = nic_pkg::ENTRY_REQUEST;
      host_bytes = packet.first[143:128];
      receive.payload = !several;
      if (several) host_place = {slot, several_packets};
    end else if (deliver_repeat) begin
      // The packets wanted: the first, and how many.
      host_kind = nic_pkg::ENTRY_REPEAT;
      host_code = response_wanted ? packet.first[111:96] : 16'd0;
      host_bytes = response_wanted ? 16'(packet.first[7:4]) + 16'd1 : 16'd1;
    end else if (deliver_wanted) begin
      host_kind = nic_pkg::ENTRY_REPEAT;
      host_code = packet.first[111:96];
      // Which packets beyond that one are there already.
      host_bytes = packet.first[143:128];
      host_tag = call.tag;
      host_remote = {13'd0, slot, slot_call};
      receive.flow = call.flow;
    end else if (deliver_response) begin
      host_kind = response_fits ? nic_pkg::ENTRY_RESPONSE : nic_pkg::ENTRY_ERROR;
      host_bytes = response_fits ? packet.first[143:128] : 16'd0;
      if (!response_fits) host_code = nic_pkg::ERROR_TOO_LARGE;
      host_tag = call.tag;
      receive.payload = response_fits && !several;
      if (response_fits && several) host_place = {call.area, several_packets};
      receive.flow = call.flow;
    end else if (deliver_managed) begin
      host_kind = nic_pkg::ENTRY_RAW;
      host_bytes = packet.bytes;
      receive.raw = 1'b1;
      receive.flow = control_flow;
    end else if (refuse_entry) begin
      host_connection = entry.connection;
      host_code = entry_error;
      host_tag = entry.tag;
      receive.flow = entry.flow;
    end else if (give_up) begin
      host_connection = call.connection;
      host_code = call_current ? nic_pkg::ERROR_TIMEOUT : nic_pkg::ERROR_CONNECTION;
      host_tag = call.tag;
      receive.flow = call.flow;
    end else receive.deliver = 1'b0;
    if (!of_packet) host_remote = '0;
    receive.head = {10'd0, host_place, host_remote, host_tag, host_code, host_connection, host_bytes, 8'd0, host_kind, 4'd0};
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, packet, entry, call};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
