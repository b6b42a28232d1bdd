// Where a packet is in a message of several, by what the packet says and by how many bytes each carries. What does not fit together, or is more
// than a message may have, is not good. Pure decision.
//
// All packets but the last are full, so packets that are taken in order leave no gap, whatever the peer says later of the message.
module message_shape (
    // Bytes of a message that a packet of this session carries, and lines of an area, as a logarithm; zero if there are none.
    input logic [15:0] payload_max,
    input logic [3:0] area_lines_log2,
    input logic [15:0] number,
    input logic [31:0] message_bytes,
    input logic [15:0] payload_bytes,
    input logic [5:0] lines,
    // The message has several packets.
    output logic several,
    // This can be one of them.
    output logic good,
    output logic last,
    // Packets of the message.
    output logic [2:0] packets,
    // Line of the area where the packet begins.
    output logic [7:0] line
);
  localparam int BITS = nic_pkg::MESSAGE_BYTES_BITS;

  logic [BITS-1:0] bytes;
  logic [BITS-1:0] offset;
  logic [BITS-1:0] offset_next;
  logic [5:0] packet_lines;
  logic [8:0] lines_end;
  logic bounded;
  logic [15:0] expected_bytes;

  assign several = message_bytes > 32'(payload_max);
  assign bounded = message_bytes <= 32'(BITS'(nic_pkg::MESSAGE_PACKETS) * BITS'(payload_max));
  assign bytes = message_bytes[BITS-1:0];
  assign offset = BITS'(number[2:0]) * BITS'(payload_max);
  assign offset_next = offset + BITS'(payload_max);
  assign last = bytes <= offset_next;
  assign expected_bytes = last ? 16'(bytes - offset) : payload_max;
  // A full packet's lines, with its head of 24 bytes.
  assign packet_lines = 6'((17'(payload_max) + 17'(24 + nic_pkg::LINE_BYTES - 1)) >> nic_pkg::LINE_BYTES_LOG2);
  assign line = 8'(number[2:0] * 8'(packet_lines));
  assign lines_end = 9'(line) + 9'(lines);
  assign good = several && bounded && number < 16'(nic_pkg::MESSAGE_PACKETS) && offset < bytes &&
      payload_bytes == expected_bytes && area_lines_log2 != 4'd0 && area_lines_log2 <= 4'd8 &&
      lines_end <= (9'd1 << area_lines_log2);

  always_comb begin
    packets = 3'd1;
    for (int i = 1; i < nic_pkg::MESSAGE_PACKETS; i++) begin
      if (BITS'(i) * BITS'(payload_max) < bytes) packets = 3'(i + 1);
    end
  end
endmodule
