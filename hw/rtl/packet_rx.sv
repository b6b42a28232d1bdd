// Takes packets from the wire, and passes on those that are whole and intact: the first line of each, with what else the transport needs, to a
// queue, the other lines to the receive buffer. The wire does not wait: a packet without room is dropped. Drops are counted by reason.
module packet_rx (
    input logic clk,
    input logic rst,
    input logic enable,
    // Packets carry a check; else their field is zero.
    input logic checking,
    // From the wire: lines, with how many bytes of each are the packet's, all in all but the last.
    input logic wire_valid,
    input logic [nic_pkg::LINE_BITS-1:0] wire_data,
    input logic [nic_pkg::LINE_BYTES_LOG2:0] wire_bytes,
    input logic wire_last,
    // Lines of this packet were lost on their way from the wire's clock; said with its last line.
    input logic wire_spoiled,
    input logic [47:0] wire_remote,
    // To the receive buffer.
    output logic line_push,
    output logic [nic_pkg::LINE_BITS-1:0] line_data,
    input logic line_ready,
    output logic line_commit,
    output logic line_rollback,
    // To the transport.
    output logic packet_valid,
    input logic packet_ready,
    output nic_pkg::packet_t packet,
    // Counted.
    output logic count_good,
    output logic count_length,
    output logic count_check,
    output logic count_kind,
    output logic count_buffer
);
  logic [5:0] lines_q;
  logic [15:0] sum_q;
  logic [nic_pkg::LINE_BITS-1:0] first_q;
  // Nothing of this packet is kept any more: too long, or no room.
  logic long_q;
  logic full_q;

  logic is_first;
  logic [nic_pkg::LINE_BITS-1:0] kept;
  logic [nic_pkg::LINE_BITS-1:0] first;
  logic [15:0] sum;
  logic [15:0] bytes;
  logic long_now;
  logic full_now;
  assign is_first = lines_q == 6'd0;
  assign first = is_first ? kept : first_q;
  assign bytes = (16'(lines_q) << nic_pkg::LINE_BYTES_LOG2) + 16'(wire_bytes);
  assign long_now = long_q || lines_q >= 6'(nic_pkg::BUFFER_LINES);
  // A packet of one line needs no room in the receive buffer.
  assign full_now = full_q || wire_spoiled || !packet_ready || (!is_first && !line_ready);

  byte_mask mask (
      .bytes(16'(wire_bytes)),
      .line(wire_data),
      .kept
  );
  line_sum adder (
      .start(is_first ? 16'd0 : sum_q),
      .line(kept),
      .sum
  );

  // In the order in which software looks, so that both count alike: length of a header, check, kind, length by kind.
  logic [3:0] kind;
  logic short_header;
  logic check_good;
  logic kind_good;
  logic length_good;
  assign kind = first[3:0];
  assign short_header = bytes < 16'd16;
  assign check_good = checking ? (first[127:112] != 16'd0 && sum == 16'hffff) : first[127:112] == 16'd0;
  assign kind_good = kind != 4'd0 && kind != 4'd15;
  always_comb begin
    case (kind)
      nic_pkg::PACKET_REQUEST, nic_pkg::PACKET_RESPONSE: length_good = bytes >= 16'd24;
      nic_pkg::PACKET_CREDIT_RETURN: length_good = bytes == 16'd16 || bytes == 16'd24;
      nic_pkg::PACKET_UNKNOWN: length_good = bytes == 16'd16 || bytes == 16'd32;
      // Session management with something after the header.
      4'd5, 4'd6, 4'd7, 4'd8: length_good = 1'b1;
      // As large as packets can be, to find out whether such arrive.
      nic_pkg::PACKET_PING, nic_pkg::PACKET_PONG: length_good = 1'b1;
      default: length_good = bytes == 16'd16;
    endcase
  end

  logic ends;
  logic good;
  assign ends = enable && wire_valid && wire_last;
  assign count_length = ends && (long_now || (!full_now && (short_header ||
      (check_good && kind_good && !length_good))));
  assign count_buffer = ends && !long_now && full_now;
  assign count_check = ends && !long_now && !full_now && !short_header && !check_good;
  assign count_kind = ends && !long_now && !full_now && !short_header && check_good && !kind_good;
  assign good = ends && !long_now && !full_now && !short_header && check_good && kind_good && length_good;
  assign count_good = good;

  assign line_push = enable && wire_valid && !is_first && !long_now && !full_now;
  assign line_data = kept;
  assign line_commit = good;
  assign line_rollback = ends && !good;
  assign packet_valid = good;
  assign packet.remote = wire_remote;
  assign packet.lines = lines_q + 6'd1;
  assign packet.bytes = bytes;
  assign packet.first = first;

  always_ff @(posedge clk) begin
    if (rst) begin
      lines_q <= '0;
      sum_q <= '0;
      first_q <= '0;
      long_q <= 1'b0;
      full_q <= 1'b0;
    end else if (enable && wire_valid) begin
      sum_q <= sum;
      first_q <= first;
      if (wire_last) begin
        lines_q <= '0;
        long_q <= 1'b0;
        full_q <= 1'b0;
      end else begin
        if (!long_now) lines_q <= lines_q + 6'd1;
        long_q <= long_now;
        full_q <= full_now;
      end
    end
  end
endmodule
