// message_shape: a packet that is taken for one of a message is stored within its slot's area, where no other packet of the message lies; it carries
// what the message has there, and only the last carries less than a full packet. For all packets, sessions and areas.
module message_shape_proof (
    input logic clk,
    input logic rst,
    input logic [15:0] payload_max,
    input logic [3:0] area_lines_log2,
    input logic [15:0] number,
    input logic [31:0] message_bytes,
    input logic [15:0] payload_bytes,
    input logic [5:0] lines
);
  logic several;
  logic good;
  logic last;
  logic [2:0] packets;
  logic [7:0] line;
  message_shape dut (
      .*
  );

  // Written as one says it.
  logic [31:0] first_byte;
  logic [31:0] lines_each;
  assign first_byte = 32'(number) * 32'(payload_max);
  assign lines_each = (32'(payload_max) + 32'd87) >> 6;
  always_ff @(posedge clk) begin
    // What packet_rx passes on, and what the host can say of a session.
    assume (payload_max <= 16'd2024 && payload_bytes <= 16'd2024 && lines != 6'd0);
    assume (32'(lines) == (32'(payload_bytes) + 32'd87) >> 6);
    if (good) begin
      assert (several && message_bytes > 32'(payload_max));
      assert (number < 16'd7 && first_byte < message_bytes);
      assert (message_bytes <= 32'd7 * 32'(payload_max));
      // Within the area, beside the others.
      assert (32'(line) + 32'(lines) <= (32'd1 << area_lines_log2) && area_lines_log2 != 4'd0);
      assert (32'(line) == 32'(number) * lines_each && 32'(lines) <= lines_each);
      // All that the message has there.
      assert (first_byte + 32'(payload_bytes) <= message_bytes);
      assert (payload_bytes == payload_max || last);
      assert (last == (first_byte + 32'(payload_bytes) == message_bytes));
      // As many packets as the message needs.
      assert (last == (packets == number[2:0] + 3'd1));
    end
  end
endmodule
