// Which message buffers are free. It gives out the lowest free one, and takes back any number at a time.
module buffer_pool #(
    parameter int BUFFERS_LOG2 = 6
) (
    input logic clk,
    input logic rst,
    input logic take,
    output logic take_valid,
    output logic [BUFFERS_LOG2-1:0] take_id,
    // Buffers that come back, one bit each.
    input logic [(1<<BUFFERS_LOG2)-1:0] give,
    // Buffers that are out.
    output logic [BUFFERS_LOG2:0] taken
);
  localparam int BUFFERS = 1 << BUFFERS_LOG2;

  logic [BUFFERS-1:0] free_q;
  logic [BUFFERS-1:0] chosen;

  assign take_valid = |free_q;
  // The lowest bit that is set, alone.
  assign chosen = free_q & (~free_q + 1'b1);

  // A bit of its number is set if it is one of those in whose numbers that bit is set.
  for (genvar bit_of = 0; bit_of < BUFFERS_LOG2; bit_of++) begin : numbered
    localparam int RUN = 1 << bit_of;
    assign take_id[bit_of] = |(chosen & {(BUFFERS / RUN / 2) {{RUN{1'b1}}, {RUN{1'b0}}}});
  end

  always_comb begin
    taken = '0;
    for (int i = 0; i < BUFFERS; i++) taken = taken + (BUFFERS_LOG2 + 1)'(!free_q[i]);
  end

  always_ff @(posedge clk) begin
    if (rst) free_q <= '1;
    else free_q <= (free_q & ~(take ? chosen : '0)) | give;
  end
endmodule
