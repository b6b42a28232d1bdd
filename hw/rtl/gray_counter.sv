// A counter, and the same in Gray code, of which one bit changes at a time: so another clock may look at it (gray_synchronizer).
module gray_counter #(
    parameter int WIDTH = 4
) (
    input logic clk,
    input logic rst,
    input logic advance,
    output logic [WIDTH-1:0] count,
    // A register's, without logic behind it, which could make bits change for a moment.
    output logic [WIDTH-1:0] gray
);
  logic [WIDTH-1:0] count_q;
  logic [WIDTH-1:0] gray_q;
  logic [WIDTH-1:0] count_next;
  assign count_next = count_q + WIDTH'(advance);
  assign count = count_q;
  assign gray = gray_q;
  always_ff @(posedge clk) begin
    if (rst) begin
      count_q <= '0;
      gray_q <= '0;
    end else begin
      count_q <= count_next;
      gray_q <= count_next ^ (count_next >> 1);
    end
  end
endmodule
